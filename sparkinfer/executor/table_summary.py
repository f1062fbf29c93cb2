"""What the run report says of a prediction table, added up batch by batch. Both sides; summaries pickle.

One implementation for tables of any length: the driver adds the rows of a short one itself; of a long one each task
adds up its part (`summarised`), and the driver merges the answers. A summary stays small: counts by class, and no more
rows than are shown.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["CONFIDENCE_BINS", "FAILED_GROUPS", "LEAST_CONFIDENT", "SAMPLE", "SUMMARY", "TableSummary", "summarised"]

CONFIDENCE_BINS = 100
"""Of equal width in [0, 1]: the last one holds 1 too."""

SAMPLE = 24
"""Predictions by chance: by a hash of the path, so the same rows whenever one asks."""

LEAST_CONFIDENT = 12

FAILED_GROUPS = 6
"""Of each error code, by a hash of the path; each group shows one row."""

ROWS_AT_ONCE = 65_536
"""Batches of a job of images are small, and adding one up takes a millisecond."""

SUMMARY = "summary"
"""The column that `summarised` gives."""

_SHOWN = ["path", "class_idx", "label", "confidence", "mark"]


@dataclass
class TableSummary:
    """Counts and samples of the rows of a prediction table.

    Rows have the columns `path`, `class_idx`, `label`, `confidence`, `code`, `stage`, `message`, and `mark`: a hash of
    the path, int64.

    Attributes:
        confidence: good rows in each of `CONFIDENCE_BINS`.
        outside: good rows whose confidence is not in [0, 1].
        labels: good rows by (class, label).
        failed: failed rows by (code, group), with the row of the group that is first by its path.
        sample: good rows by chance, as columns.
        least: the least confident good rows, as columns.
    """

    confidence: list[int] = field(default_factory=lambda: [0] * CONFIDENCE_BINS)
    outside: int = 0
    labels: Counter[tuple[int | None, str | None]] = field(default_factory=Counter)
    failed: dict[tuple[str, int], tuple[int, dict[str, Any]]] = field(default_factory=dict)
    sample: pa.Table | None = None
    least: pa.Table | None = None

    def add(self, rows: pa.Table) -> None:
        """Adds rows of the table."""
        is_good = pc.is_null(rows["code"])
        good = rows.filter(is_good)
        if good.num_rows:
            self._add_confidence(good["confidence"])
            for row in good.group_by(["class_idx", "label"]).aggregate([([], "count_all")]).to_pylist():
                self.labels[row["class_idx"], row["label"]] += row["count_all"]
            self._show(good.select(_SHOWN), good.select(_SHOWN))
        if good.num_rows < rows.num_rows:
            self._add_failed(rows.filter(pc.invert(is_good)))

    def merge(self, other: TableSummary) -> None:
        """Adds what another summary has."""
        self.confidence = [mine + theirs for mine, theirs in zip(self.confidence, other.confidence, strict=True)]
        self.outside += other.outside
        self.labels.update(other.labels)
        for key, (count, row) in other.failed.items():
            self._count_failed(key, count, row)
        if other.sample is not None and other.least is not None:
            self._show(other.sample, other.least)

    def _add_confidence(self, confidence: pa.ChunkedArray) -> None:
        values = confidence.to_numpy()  # NaN for null: no confidence either way
        inside = values[(values >= 0) & (values <= 1)]
        bins = np.minimum((inside * CONFIDENCE_BINS).astype(np.int64), CONFIDENCE_BINS - 1)
        counts = np.bincount(bins, minlength=CONFIDENCE_BINS)
        self.confidence = [before + int(more) for before, more in zip(self.confidence, counts, strict=True)]
        self.outside += len(values) - len(inside)

    def _show(self, by_chance: pa.Table, by_confidence: pa.Table) -> None:
        self.sample = _first(self.sample, by_chance, SAMPLE, ["mark", "path"])
        self.least = _first(self.least, by_confidence, LEAST_CONFIDENT, ["confidence", "path"])

    def _add_failed(self, rows: pa.Table) -> None:
        marks = np.mod(pc.fill_null(rows["mark"], 0).to_numpy(), FAILED_GROUPS)
        rows = rows.select(["code", "path", "stage", "message"]).append_column("group", pa.array(marks))
        ordered = rows.take(pc.sort_indices(rows, [("path", "ascending")]))
        kept = pc.ScalarAggregateOptions(skip_nulls=False, min_count=0)
        firsts = [(name, "first", kept) for name in ("path", "stage", "message")]
        # In one thread: of several, none is the first.
        groups = ordered.group_by(["code", "group"], use_threads=False).aggregate([*firsts, ([], "count_all")])
        for group in groups.to_pylist():
            row = {name: group[f"{name}_first"] for name in ("path", "stage", "message")}
            self._count_failed((group["code"], group["group"]), group["count_all"], row)

    def _count_failed(self, key: tuple[str, int], count: int, row: dict[str, Any]) -> None:
        before, known = self.failed.get(key, (0, row))
        self.failed[key] = before + count, min(known, row, key=_place_of)


def summarised(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow`: the summary of one task's rows, pickled, in the one row that it gives."""
    summary = TableSummary()
    waiting: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= ROWS_AT_ONCE:
            summary.add(pa.Table.from_batches(waiting))
            waiting.clear()
            rows = 0
    if waiting:
        summary.add(pa.Table.from_batches(waiting))
    yield pa.RecordBatch.from_arrays([pa.array([pickle.dumps(summary)], pa.binary())], names=[SUMMARY])


def _place_of(row: dict[str, Any]) -> tuple[bool, str]:
    """By path; rows without one last, as Arrow sorts them."""
    return row["path"] is None, row["path"] or ""


def _first(known: pa.Table | None, more: pa.Table, count: int, order: list[str]) -> pa.Table:
    """The first rows of both, in ascending order of some columns; nulls come last."""
    rows = more if known is None else pa.concat_tables([known, more])
    return pc.take(rows, pc.select_k_unstable(rows, count, [(name, "ascending") for name in order])).combine_chunks()
