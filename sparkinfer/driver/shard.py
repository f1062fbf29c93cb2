"""`sharding:` how the input is spread over tasks. Driver side.

The modes say what every task should have the same of: `files` images, `bytes` bytes, `hybrid` work (bytes to decode
and images to infer, see `packing.ROW_COST`). `none` leaves it to Spark. `auto` is `hybrid` where it helps.

Files cost nothing to spread: none has been read, and `manifest` decides which task opens which. Rows that carry their
bytes can only be moved through a shuffle: `splits.rows`.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from sparkinfer.driver.sources.inputs import FileSet, Input
from sparkinfer.driver.splits.file_tasks import SparkSplit, file_tasks
from sparkinfer.driver.splits.packing import LED, leading_sizes
from sparkinfer.driver.splits.rows import shard_rows
from sparkinfer.driver.splits.sharding import Sharding

__all__ = ["Sharding", "shard", "spark_split_settings"]


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
    decided = file_tasks(files.lengths, mode, cores, spark_split_settings(spark))
    if decided.assigned is None:
        return Sharding(files.open(spark), decided.reason, decided.partitions, decided.heaviest_over_mean)
    order, sizes = leading_sizes(decided.assigned)
    frame = files.open(spark, order, sizes)
    return Sharding(frame, decided.reason, decided.partitions, decided.heaviest_over_mean, LED)


def spark_split_settings(spark: SparkSession) -> SparkSplit:
    """The session's own."""
    session: Any = spark._jsparkSession
    conf = session.sessionState().conf()
    least = conf.filesMinPartitionNum()
    least = least.get() if least.isDefined() else session.leafNodeDefaultParallelism()
    return SparkSplit(conf.filesMaxPartitionBytes(), conf.filesOpenCostInBytes(), least)
