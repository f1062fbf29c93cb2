"""What a task tells the driver while the job still runs: rows, failures, samples. Executor side; everything pickles.

A Spark accumulator carries it, and Spark delivers an accumulator's news when a task ends. These early figures serve to
stop a hopeless job (`driver.budget`); the exact ones are counted in what is written (`driver.job`).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkinfer.executor import taskcontext

__all__ = ["Tally", "TallyParam", "counted", "error_counts"]


@dataclass
class Tally:
    """Rows that went through the model's chain.

    Attributes:
        rows: good and failed.
        errors: failed rows by code.
        samples: the path of one failed row for each code, where the engine knows paths (`arrow`).
        attempts: partition to the attempt that is counted, by Spark's number of that attempt.
    """

    rows: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    samples: dict[str, str] = field(default_factory=dict)
    attempts: dict[int, int] = field(default_factory=dict)

    @property
    def failed(self) -> int:
        """Rows with an error code."""
        return sum(self.errors.values())

    def add(self, more: Tally) -> None:
        """Adds news of one task, unless another attempt at that task is counted already."""
        if any(self.attempts.get(partition, attempt) != attempt for partition, attempt in more.attempts.items()):
            return
        self.rows += more.rows
        for code, count in more.errors.items():
            self.errors[code] = self.errors.get(code, 0) + count
        self.samples = more.samples | self.samples
        self.attempts |= more.attempts


class TallyParam:
    """How Spark adds tallies: what `pyspark.accumulators.AccumulatorParam` asks for."""

    def zero(self, _value: Tally) -> Tally:
        """Where a task begins."""
        return Tally()

    def addInPlace(self, total: Tally, more: Tally) -> Tally:  # noqa: N802 - Spark's name
        """`total`, with `more` added."""
        total.add(more)
        return total


def counted(results: Iterable[pa.RecordBatch], counts: Any, path: str | None = None) -> Iterator[pa.RecordBatch]:
    """Passes the results of a task on and tells of them. In the process that Spark started: no other can.

    Args:
        results: batches with the column `error_code`.
        counts: `TaskPlan.counts`; None tells nothing.
        path: column that names a row, if they have one.
    """
    if counts is None:
        yield from results
        return
    # `predict_batch_udf` keeps its function, and our plan in it, from task to task; Spark's accumulator lives for one.
    # A copy is, by the way accumulators pickle, that of the running task.
    counts = copy.copy(counts)
    task = {taskcontext.partition_id(): taskcontext.task_attempt_id()}
    counts.add(Tally(attempts=task))  # a task without rows has ended too
    for batch in results:
        counts.add(_tally(batch, path, task))
        yield batch


def error_counts(results: pa.RecordBatch) -> dict[str, int]:
    """Failed rows by code.

    Args:
        results: a batch with the column `error_code`.
    """
    codes = results.column("error_code")
    if codes.null_count == results.num_rows:
        return {}
    return {entry["values"]: entry["counts"] for entry in pc.value_counts(codes.drop_null()).to_pylist()}


def _tally(batch: pa.RecordBatch, path: str | None, task: dict[int, int]) -> Tally:
    tally = Tally(batch.num_rows, error_counts(batch), attempts=task)
    if path is not None:
        codes, names = batch.column("error_code"), batch.column(path)
        tally.samples = {code: str(names[pc.index(codes, code).as_py()].as_py()) for code in tally.errors}
    return tally
