"""The files behind an input of rows, so that some of them can be read without the others. Driver side.

Spark leaves the files of a scan aside that a condition on `_metadata.file_path` excludes, before it opens any
(`PartitioningAwareFileIndex.listFiles`), whatever the layout: folders, globs, partitions, a catalogue table.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, SparkSession

from sparkinfer.core.errors import EmptySourceError
from sparkinfer.core.spec import SourceSpec
from sparkinfer.driver.checkpoints.ledger import UNITS
from sparkinfer.driver.frames import metadata_column, to_arrow
from sparkinfer.driver.paths import parse
from sparkinfer.driver.sources.files import list_files
from sparkinfer.driver.sources.inputs import Input
from sparkinfer.driver.sources.path_table import look_up
from sparkinfer.driver.sources.row_input import open_rows, rows_of

__all__ = ["FoundRows", "find_rows"]


@dataclass(frozen=True)
class FoundRows:
    """An input of rows before it becomes an `Input`: all its files, or some.

    Attributes:
        source: the spec.
        frame: all rows and columns of all files.
        table: `LISTING_SCHEMA`, one row for every file with content.
        chosen: whether `table` is a part of them.
    """

    source: SourceSpec
    frame: DataFrame
    table: pa.Table
    chosen: bool = False

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """Columns that lead the prediction table."""
        return rows_of(self.frame, self.source).keys

    @property
    def left_out(self) -> Counter[str]:
        """Nothing: Spark's own sources say nothing of it."""
        return Counter()

    @property
    def units(self) -> pa.Table:
        """`ledger.UNITS` of every file."""
        return pa.table([self.table[name] for name in ("path", "length", "modificationTime")], schema=UNITS)

    @property
    def row_count(self) -> int | None:
        """Not known without reading."""
        return None

    def take(self, positions: NDArray[np.int64]) -> FoundRows:
        """Some of the files, by their positions."""
        return replace(self, table=self.table.take(pa.array(positions)), chosen=True)

    def restored(self, gone: list[str | None]) -> FoundRows:  # noqa: ARG002 - nobody knows what rows they had
        """The same: which rows a file had that is gone, nobody knows."""
        return self

    def to_input(self, spark: SparkSession) -> Input:
        """What the job reads."""
        return rows_of(self._frame(spark), self.source)

    def rows(self, spark: SparkSession) -> NDArray[np.int64]:
        """Rows of every file, which Parquet and ORC know without reading them."""
        counted = to_arrow(self._frame(spark).groupBy(_file_path(self.frame).alias("file")).count())
        counts = dict(zip(counted["file"].to_pylist(), counted["count"].to_pylist(), strict=True))
        return np.array([counts.get(name, 0) for name in self._names(spark)], np.int64)

    def _frame(self, spark: SparkSession) -> DataFrame:
        return self.frame.where(_file_path(self.frame).isin(self._names(spark))) if self.chosen else self.frame

    def _names(self, spark: SparkSession) -> list[str]:
        """The files as `_metadata.file_path` has them."""
        path_of: Any = spark.sparkContext._jvm.org.apache.hadoop.fs.Path  # type: ignore[union-attr]
        return [path_of(path).toUri().toString() for path in self.table["path"].to_pylist()]


def find_rows(spark: SparkSession, source: SourceSpec) -> FoundRows:
    """Opens Parquet files or a catalogue table of files, and lists the files.

    Raises:
        SourceError: it does not exist or has no files.
    """
    frame = open_rows(spark, source)
    if source.kind == "parquet":
        table = list_files(spark, source.locations, key="source.parquet").table
    else:
        table = look_up(spark, [_decoded(name) for name in frame.inputFiles()]).sort_by("path")
    table = table.filter(pc.not_equal(table["length"], 0))  # Spark reads no empty file
    if not table.num_rows:
        raise EmptySourceError(f"no files in {', '.join(source.locations)}", key=f"source.{source.kind}")
    return FoundRows(source, frame, table)


def _file_path(frame: DataFrame) -> Column:
    return metadata_column(frame, "_metadata").getField("file_path")


def _decoded(name: str) -> str:
    """The qualified path of a URL from `DataFrame.inputFiles`."""
    scheme, authority, path = parse(name)
    start = f"{scheme}:" if scheme else ""
    return f"{start}//{authority}{unquote(path)}" if authority else f"{start}{unquote(path)}"
