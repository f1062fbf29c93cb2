"""Spark settings that a job decides for itself, and those that suit a cluster, each with its reason. Driver side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sparkinfer.driver.planning.memory import Part, total
from sparkinfer.driver.planning.resource_rule import Cluster, Sizing
from sparkinfer.driver.session import arrow_limits
from sparkinfer.driver.splits.packing import LED

__all__ = ["Setting", "job_settings", "suggested_settings"]

MIB = 1 << 20


@dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        name: Spark's key. (A field named `key` would be taken for a secret, and hidden.)
        value: as a profile would hold it; None: unset.
        reason: one line.
    """

    name: str
    value: str | None
    reason: str


_REASONS = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "images of the mean size that fit into batch.max_bytes; 10,000 by "
    "default are gigabytes",
    "spark.sql.execution.arrow.maxBytesPerBatch": "batch.max_bytes",
    "spark.sql.parquet.columnarReaderBatchSize": "so many rows Spark's reader holds at once; 4,096 by default",
    "spark.sql.orc.columnarReaderBatchSize": "the same for ORC",
}


def job_settings(max_bytes: int, mean_bytes: float | None, *, led: bool) -> list[Setting]:
    """What a run sets in its session.

    Args:
        max_bytes: `batch.max_bytes`.
        mean_bytes: of an image, where it is known.
        led: files are packed by us, not by Spark.
    """
    limits = arrow_limits(max_bytes, mean_bytes)
    found = [Setting(key, value, _REASONS[key]) for key, value in limits.items()]
    if led:
        reason = "while the files are packed: leads Spark to the tasks above"
        found += [Setting(key, value, reason) for key, value in LED.items()]
    return found


def suggested_settings(cluster: Cluster, sizing: Sizing, beside: Iterable[Part]) -> list[Setting]:
    """A profile's settings by the resource rule."""
    kind = "GPU" if sizing.gpus else "CPU"
    slots = sizing.executors * (1 if sizing.gpus else sizing.cores)
    found = [
        Setting(
            "spark.executor.instances",
            str(sizing.executors),
            f"{sizing.per_node} on each of {cluster.nodes} nodes, bounded by {sizing.bound}",
        ),
        Setting("spark.executor.cores", str(sizing.cores), "to decode on: a share of the node's"),
        Setting("spark.executor.memory", f"{sizing.heap // MIB}m", f"heap of a {kind} executor"),
        Setting(
            "spark.executor.memoryOverhead",
            f"{-(-total(beside) // MIB)}m",
            f"beside the heap, for batches of {sizing.batch}: by the same formula as above",
        ),
        Setting("spark.default.parallelism", str(max(1, slots)), "tasks at once, by which the input is cut"),
    ]
    if sizing.gpus:
        found += [
            Setting("spark.executor.resource.gpu.amount", "1", "one GPU for each executor"),
            Setting("spark.task.resource.gpu.amount", "1", "one task for each GPU; it decodes on all cores"),
        ]
    return found
