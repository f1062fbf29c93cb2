"""`sharding:` how the input is spread over tasks. Driver side.

The modes say what every task should have the same of: `files` images, `bytes` bytes, `hybrid` work (bytes to decode
and images to infer, see `packing.ROW_COST`). `none` leaves it to Spark. `auto` is `hybrid` where it helps.

Files cost nothing to spread: none has been read, and `manifest` decides which task opens which. Rows that carry their
bytes can only be moved through a shuffle: `shard_rows`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from sparkinfer.driver.inputs import FileSet, Input
from sparkinfer.driver.packing import (
    LED,
    ROW_COST,
    heaviest_over_mean,
    leading_sizes,
    lpt,
    spark_split,
    target_bins,
)
from sparkinfer.driver.shard_rows import shard_rows
from sparkinfer.driver.sharding import GOOD, Sharding, tasks

__all__ = ["Sharding", "shard"]


def shard(spark: SparkSession, source: Input, mode: str, cores: int) -> Sharding:
    """Spreads an input over tasks.

    Args:
        spark: the session.
        source: from `read_source`.
        mode: auto, files, bytes, hybrid or none.
        cores: tasks that run at once.

    Raises:
        EmptySourceError: rows were asked for and there are none.
    """
    if source.files is not None:
        return _shard_files(spark, source.files, mode, cores)
    return shard_rows(spark, source, mode, cores)


def _shard_files(spark: SparkSession, files: FileSet, mode: str, cores: int) -> Sharding:
    lengths = files.lengths
    own = _sparks_own(spark, lengths)
    parts, balance = len(np.unique(own)), heaviest_over_mean(own, lengths)
    bins = target_bins(len(lengths), int(lengths.sum()), cores)
    said = f"{mode}: Spark by itself cuts {len(lengths):,} files into {tasks(parts)}, heaviest {balance:.2f} x the mean"
    is_good = balance <= GOOD and min(cores, len(lengths)) <= parts <= 2 * bins
    if mode == "none" or not len(lengths) or (mode == "auto" and is_good):
        return Sharding(files.open(spark), f"{said}; left as it is", parts, balance)
    weights, by = _weights(lengths, mode)
    assigned = lpt(weights, bins)
    order, sizes = leading_sizes(assigned)
    balance = heaviest_over_mean(assigned, lengths)
    reason = f"{said}; packed by {by} into {tasks(bins)} instead, heaviest {balance:.2f} x the mean bytes"
    return Sharding(files.open(spark, order, sizes), reason, bins, balance, LED)


def _weights(lengths: NDArray[np.int64], mode: str) -> tuple[NDArray[np.int64], str]:
    if mode == "bytes":
        return lengths, "bytes"
    if mode == "files":
        # By count, and only then by bytes: one file more outweighs all bytes.
        return lengths + int(lengths.sum()) + 1, "count"
    return lengths + ROW_COST, "work"


def _sparks_own(spark: SparkSession, lengths: NDArray[np.int64]) -> NDArray[np.int32]:
    """What Spark would do by itself under the session's settings (`FilePartition.maxSplitBytes`)."""
    session: Any = spark._jsparkSession
    conf = session.sessionState().conf()
    sizes = np.maximum(lengths, 1)
    open_cost = conf.filesOpenCostInBytes()
    least = conf.filesMinPartitionNum()
    least = least.get() if least.isDefined() else session.leafNodeDefaultParallelism()
    total = int(sizes.sum()) + open_cost * len(sizes)
    return spark_split(sizes, min(conf.filesMaxPartitionBytes(), max(open_cost, total // least)), open_cost)
