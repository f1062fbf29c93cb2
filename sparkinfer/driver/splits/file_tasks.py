"""How files are cut into tasks: the decision as data. Driver side; no session, so that `plan` decides as `run` does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sparkinfer.driver.splits.packing import ROW_COST, heaviest_over_mean, lpt, spark_split, target_bins
from sparkinfer.driver.splits.sharding import GOOD, tasks

__all__ = ["FileTasks", "SparkSplit", "file_tasks"]


@dataclass(frozen=True)
class SparkSplit:
    """The settings by which Spark cuts files into tasks (`FilePartition.maxSplitBytes`).

    Attributes:
        max_bytes: `spark.sql.files.maxPartitionBytes`.
        open_cost: `spark.sql.files.openCostInBytes`.
        least: `spark.sql.files.minPartitionNum`, or the default parallelism.
    """

    max_bytes: int
    open_cost: int
    least: int

    def tasks(self, lengths: NDArray[np.int64]) -> NDArray[np.int32]:
        """The task that Spark by itself would give every file."""
        sizes = np.maximum(lengths, 1)
        total = int(sizes.sum()) + self.open_cost * len(sizes)
        return spark_split(sizes, min(self.max_bytes, max(self.open_cost, total // self.least)), self.open_cost)


@dataclass(frozen=True)
class FileTasks:
    """What was decided.

    Attributes:
        assigned: task of every file, where it is ours; None leaves the files to Spark's own way.
        reason: in a sentence.
        partitions: number of tasks.
        heaviest_over_mean: of their bytes.
    """

    assigned: NDArray[np.int32] | None
    reason: str
    partitions: int
    heaviest_over_mean: float


def file_tasks(lengths: NDArray[np.int64], mode: str, cores: int, split: SparkSplit) -> FileTasks:
    """Decides.

    Args:
        lengths: bytes of every file.
        mode: auto, files, bytes, hybrid or none.
        cores: tasks that run at once.
        split: Spark's settings.
    """
    own = split.tasks(lengths)
    parts, balance = len(np.unique(own)), heaviest_over_mean(own, lengths)
    bins = target_bins(len(lengths), int(lengths.sum()), cores)
    said = f"{mode}: Spark by itself cuts {len(lengths):,} files into {tasks(parts)}, heaviest {balance:.2f} x the mean"
    is_good = balance <= GOOD and min(cores, len(lengths)) <= parts <= 2 * bins
    if mode == "none" or not len(lengths) or (mode == "auto" and is_good):
        return FileTasks(None, f"{said}; left as it is", parts, balance)
    weights, by = _weights(lengths, mode)
    assigned = lpt(weights, bins)
    balance = heaviest_over_mean(assigned, lengths)
    reason = f"{said}; packed by {by} into {tasks(bins)} instead, heaviest {balance:.2f} x the mean bytes"
    return FileTasks(assigned, reason, bins, balance)


def _weights(lengths: NDArray[np.int64], mode: str) -> tuple[NDArray[np.int64], str]:
    if mode == "bytes":
        return lengths, "bytes"
    if mode == "files":
        # By count, and only then by bytes: one file more outweighs all bytes.
        return lengths + int(lengths.sum()) + 1, "count"
    return lengths + ROW_COST, "work"
