"""Spreading rows that carry their bytes (Parquet, tables, queries): leave, join or move them. Driver side.

Moving means a shuffle of all image bytes, so rows stay where they are as long as the cores stay busy. What tasks weigh
is asked of Spark in a pass that brings numbers to the driver, never bytes: the length of every row, which reads the
bytes, for inputs up to `MEASURED_BYTES`; above it the number of rows, which Parquet knows without reading.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkinfer.core.errors import EmptySourceError
from sparkinfer.driver.frames import column, local_frame, settings, to_arrow
from sparkinfer.driver.sources.inputs import Input
from sparkinfer.driver.splits.packing import ROW_COST, heaviest_over_mean, lpt, salts, target_bins
from sparkinfer.driver.splits.sharding import GOOD, Sharding, tasks

__all__ = ["busy", "shard_rows"]

MEASURED_BYTES = 1 << 30
"""Inputs up to this size, by Spark's estimate, are measured row by row for `auto`: seconds."""

MEASURED_ROWS = 1_000_000
"""More rows are never placed one by one: the table of their places would weigh on every executor."""

MANY = 4
"""So many times the wished number of tasks is too many: each costs its start."""

EVEN = 1.05
"""Tasks that take at most so many times as long as evenly spread ones are not worth cutting again."""

_SCANS = {"parquet", "table"}

_ID = "_sparkinfer_id"
_SALT = "_sparkinfer_salt"
_ID_BITS = 33
"""`monotonically_increasing_id` is the number of the task, shifted by so many bits, plus that of the row in it."""


@dataclass(frozen=True)
class _Rows:
    """What is known of the rows in their present tasks.

    Attributes:
        task: of every row, or of every task that has rows.
        count: rows that each entry stands for.
        ids: of every row, where they were measured.
        lengths: bytes of every row, where they were measured.
    """

    task: NDArray[np.int64]
    count: NDArray[np.int64]
    ids: NDArray[np.int64] | None = None
    lengths: NDArray[np.int64] | None = None

    @property
    def total(self) -> int:
        return int(self.count.sum())

    def heaviest_share(self, weights: NDArray[np.int64]) -> float:
        """Share of the heaviest row in all work; a task's rows count as equals where they were not measured."""
        return 1 / self.total if self.lengths is None else float(weights.max() / weights.sum())

    def weights(self, mode: str) -> NDArray[np.int64]:
        if self.lengths is None or mode == "files":
            return self.count
        return np.maximum(self.lengths, 1) if mode == "bytes" else self.lengths + ROW_COST


def shard_rows(spark: SparkSession, source: Input, mode: str, cores: int) -> Sharding:
    """Spreads rows over tasks; see `shard.shard`."""
    frame = source.frame
    assert frame is not None
    if mode == "none":
        if frame.select(*map(column, source.content_keys)).isEmpty():
            raise _empty(source)
        return Sharding(frame, "none: the tasks are Spark's own", None)
    rows = _known(frame, source.content_column, mode)
    if not rows.total:
        raise _empty(source)
    weights = rows.weights(mode)
    present = np.unique(rows.task, return_inverse=True)[1].astype(np.int32)
    totals = np.bincount(present, weights=weights)
    parts, balance = len(totals), heaviest_over_mean(present, weights)
    size = min(_estimate(frame), rows.total * 1_000_000) if rows.lengths is None else int(rows.lengths.sum())
    bins = target_bins(rows.total, size, cores)
    said = f"{mode}: {rows.total:,} rows in {tasks(parts)}, heaviest {balance:.2f} x the mean"
    if _is_good(totals, mode, cores, bins, rows.heaviest_share(weights)):
        evened = _evened(spark, source, mode, cores, totals) if mode == "auto" and source.kind in _SCANS else None
        if evened is not None:
            return replace(evened, reason=f"{said}; {evened.reason}")
        return Sharding(frame, f"{said}; left where they are", parts, balance)
    if mode == "auto" and parts > MANY * bins:
        joined = np.add.reduceat(totals, np.arange(bins) * parts // bins)
        if busy(joined, cores) <= GOOD:
            balance = float(joined.max() / joined.mean())
            return Sharding(frame.coalesce(bins), f"{said}; joined into {tasks(bins)}, none moved", bins, balance)
    if rows.ids is not None and mode != "files":
        assigned = lpt(weights, bins)
        balance = heaviest_over_mean(assigned, weights)
        moved, by = _placed(spark, frame, rows.ids, assigned, bins), "bytes" if mode == "bytes" else "work"
    else:
        balance = -(-rows.total // bins) * bins / rows.total
        moved, by = frame.repartition(bins, _dealt(bins)), "count"
    return Sharding(
        moved, f"{said}; moved by {by} into {tasks(bins)}, heaviest {balance:.2f} x the mean", bins, balance
    )


def _evened(spark: SparkSession, source: Input, mode: str, cores: int, totals: NDArray[Any]) -> Sharding | None:
    """The same rows in tasks that end together: Spark cuts the files elsewhere, and nothing is moved.

    With seven equal tasks on two cores one core idles at the end; with eight none does. None where it helps nothing.
    """
    frame, before = source.frame, busy(totals, cores)
    assert frame is not None
    if before <= EVEN or len(totals) > MANY * cores:
        return None
    waves = -(-len(totals) // cores)
    best: Sharding | None = None
    for number in (waves * cores, (waves + 1) * cores):
        conf = {"spark.sql.files.maxPartitionBytes": str(-(-_scan_cost(spark, frame) // number))}
        with settings(spark, conf):
            rows = _known(frame, source.content_column, mode)
        weights = rows.weights(mode)
        present = np.unique(rows.task, return_inverse=True)[1].astype(np.int32)
        cut = np.bincount(present, weights=weights)
        if (after := busy(cut, cores)) < before - (EVEN - 1):
            before = after
            reason = f"cut into {tasks(len(cut))} that end together, none moved"
            best = Sharding(frame, reason, len(cut), heaviest_over_mean(present, weights), conf)
        if before <= EVEN:
            break
    return best


def _scan_cost(spark: SparkSession, frame: DataFrame) -> int:
    """What Spark takes the files of a scan for when it cuts them: their bytes, and a constant for each."""
    session: Any = spark._jsparkSession
    open_cost = int(session.sessionState().conf().filesOpenCostInBytes())
    return _estimate(frame) + open_cost * len(frame.inputFiles())


def _empty(source: Input) -> EmptySourceError:
    return EmptySourceError(
        f"{source.name} has 0 rows", key=f"source.{source.kind}", hint="source.where or source.sample may leave none"
    )


def _is_good(totals: NDArray[Any], mode: str, cores: int, bins: int, heaviest_row: float) -> bool:
    """Whether moving image bytes through a shuffle would not pay."""
    if mode == "auto":
        # One row cannot be cut: with few or very uneven rows the ideal itself is longer.
        return len(totals) <= MANY * bins and busy(totals, cores) <= GOOD * max(1.0, heaviest_row * cores)
    return len(totals) >= min(cores, bins) and float(totals.max() / totals.mean()) <= GOOD


def busy(weights: NDArray[Any], cores: int) -> float:
    """How much longer tasks take than they would, were they spread evenly over the cores; 1 is ideal.

    Spark gives every free core the next task.
    """
    ends = [0.0] * cores
    for weight in weights.tolist():
        heapq.heapreplace(ends, ends[0] + weight)
    return float(max(ends) * cores / weights.sum())


def _known(frame: DataFrame, content: str, mode: str) -> _Rows:
    if mode == "auto" and _estimate(frame) <= MEASURED_BYTES:
        return _measured(frame, content)
    numbered = frame.select(F.spark_partition_id().alias("task")).groupBy("task").count()
    counts = to_arrow(numbered.orderBy("task"))
    rows = _Rows(counts["task"].to_numpy().astype(np.int64), counts["count"].to_numpy())
    return _measured(frame, content) if mode in {"bytes", "hybrid"} and rows.total <= MEASURED_ROWS else rows


def _measured(frame: DataFrame, content: str) -> _Rows:
    length = F.coalesce(F.octet_length(column(content)), F.lit(0)).cast("long").alias("length")
    found = to_arrow(frame.select(F.monotonically_increasing_id().alias("id"), length))
    ids = found["id"].to_numpy()
    return _Rows(ids >> _ID_BITS, np.ones(len(ids), np.int64), ids, found["length"].to_numpy())


def _estimate(frame: DataFrame) -> int:
    """Bytes by Spark's own statistics: the files' for plain scans, and anything at all behind a join."""
    plan: Any = frame._jdf
    return int(str(plan.queryExecution().optimizedPlan().stats().sizeInBytes()))


def _placed(
    spark: SparkSession, frame: DataFrame, ids: NDArray[np.int64], assigned: NDArray[np.int32], bins: int
) -> DataFrame:
    """Moves every row to its bin. A row that was not there when rows were measured goes anywhere."""
    salt = np.array(salts(bins), np.int32)[assigned]
    places = local_frame(spark, pa.table({_ID: ids, _SALT: salt}))
    anywhere = F.pmod(F.col(_ID), F.lit(1 << 20)).cast("int")
    return (
        frame.withColumn(_ID, F.monotonically_increasing_id())
        .join(F.broadcast(places), _ID, "left")
        .repartition(bins, F.coalesce(F.col(_SALT), anywhere))
        .select(*map(column, frame.columns))
    )


def _dealt(bins: int) -> Column:
    """Deals rows out in turn: to the bins of a hash partitioning, which, unlike round robin, needs no sort."""
    turn = F.pmod(F.monotonically_increasing_id(), F.lit(bins)).cast("int")
    # Folded into one literal by Spark; an array of thousands of literals would not be.
    of_bin = F.split(F.lit(",".join(map(str, salts(bins)))), ",").cast("array<int>")
    return F.element_at(of_bin, turn + 1)
