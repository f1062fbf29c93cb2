"""Cutting an input of files into snapshots. Driver side."""

from __future__ import annotations

from collections import Counter
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import SparkSession

from sparkinfer.core.errors import SpecError
from sparkinfer.core.quantities import Amount
from sparkinfer.core.spec import JobSpec
from sparkinfer.driver.names import table_name
from sparkinfer.driver.sources.file_input import find_folders, find_path_table
from sparkinfer.driver.sources.found_rows import FoundRows, find_rows
from sparkinfer.driver.sources.inputs import Input

__all__ = ["Found", "batch_rows", "cut", "find", "is_streamed", "snapshots"]

AUTO_BATCH_ROWS = 32
"""Rows that count as one batch where `batch.size` is auto, which only executors can find."""

_FILE_FORMATS = {"parquet", "orc", "json", "csv", "avro", "text", "hive"}


class Found(Protocol):
    """The files of an input: see `FoundFiles` and `FoundRows`."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Columns that lead the prediction table."""

    @property
    def left_out(self) -> Counter[str]:
        """Entries of the listing that are no rows, by reason."""

    @property
    def units(self) -> pa.Table:
        """`ledger.UNITS` of every file."""

    @property
    def row_count(self) -> int | None:
        """Rows of the prediction table that they give, where that is known without reading."""

    def take(self, positions: NDArray[np.int64]) -> Found:
        """Some of them."""

    def restored(self, gone: list[str | None]) -> Found:
        """With rows for files that were there when a snapshot was begun and are not any more."""

    def to_input(self, spark: SparkSession) -> Input:
        """What the job reads."""


def is_streamed(spark: SparkSession, spec: JobSpec) -> bool:
    """Whether Spark's streaming has to say what is new: tables that keep their own books (Delta, Iceberg).

    Raises:
        SpecError: a query or a view, which nobody can say of what is new.
    """
    source = spec.source
    if source.limit is not None:
        raise SpecError(
            "a limit cannot be resumed: which rows are the first ones may change from run to run",
            key="source.limit",
            hint="choose rows with source.where or source.sample",
        )
    if source.kind != "table":
        if source.kind == "query":
            raise _unknown_progress("source.query", "a query")
        return False
    name = table_name(str(source.table), "source.table")
    described = {row["col_name"]: row["data_type"] for row in spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()}
    if str(described.get("Type", "")).upper() == "VIEW":
        raise _unknown_progress("source.table", "a view")
    return str(described.get("Provider", "")).lower() not in _FILE_FORMATS


def _unknown_progress(key: str, what: str) -> SpecError:
    return SpecError(
        f"{what} cannot be resumed: nobody can say which of its rows are new",
        key=key,
        allowed=["source.images", "source.parquet", "source.paths", "source.table (a table, no view)"],
        hint="save its result as a table or as Parquet first, or leave resume out",
    )


def find(spark: SparkSession, spec: JobSpec) -> Found:
    """Lists the files of an input.

    Raises:
        SourceError: see `read.read_source`.
    """
    if spec.source.kind == "images":
        return find_folders(spark, spec.source)
    if spec.source.kind == "paths":
        return find_path_table(spark, spec.source)
    return find_rows(spark, spec.source)


def snapshots(spark: SparkSession, found: Found, spec: JobSpec, every: Amount) -> list[NDArray[np.int64]]:
    """Which files belong to which snapshot: positions in `found`, in order."""
    if every.unit == "files":
        return cut(np.ones(found.units.num_rows, np.int64), every.count)
    if every.unit == "bytes":
        return cut(pc.fill_null(found.units["length"], 0).to_numpy(), every.count)
    rows = found.rows(spark) if isinstance(found, FoundRows) else np.ones(found.units.num_rows, np.int64)
    return cut(rows, min(every.count * batch_rows(spec), np.iinfo(np.int64).max))


def batch_rows(spec: JobSpec) -> int:
    """Rows that count as one batch."""
    return AUTO_BATCH_ROWS if spec.batch.size == "auto" else spec.batch.size


def cut(weights: NDArray[np.int64], limit: int) -> list[NDArray[np.int64]]:
    """Cuts a row of weights into runs.

    Args:
        weights: at least 0, in order.
        limit: a run ends with the item that reaches the next multiple of it, so an item over the limit shortens the
            runs after it.

    Returns:
        Positions of every run, none empty.
    """
    before = np.cumsum(weights) - weights
    run = before // limit
    ends = np.flatnonzero(np.diff(run)) + 1
    return [part for part in np.split(np.arange(len(weights)), ends) if len(part)]
