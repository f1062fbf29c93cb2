"""Files: `images:` and `paths:` -> `Input`. Driver side; files are listed or looked up, none is opened."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from sparkinfer.core.errors import EmptySourceError, ErrorCode, SourceError
from sparkinfer.core.spec import SourceSpec
from sparkinfer.driver.checkpoints.ledger import UNITS
from sparkinfer.driver.frames import column, local_frame, to_arrow
from sparkinfer.driver.sources.files import Listing, check_names, list_files, listing_table
from sparkinfer.driver.sources.inputs import CODE, MESSAGE, RAW, READ, FileSet, Input
from sparkinfer.driver.sources.local_files import FileRow
from sparkinfer.driver.sources.path_table import look_up, open_path_table
from sparkinfer.driver.sources.selection import check_keys, filtered, named_column, short_name
from sparkinfer.driver.sql_errors import closest, explained

__all__ = [
    "FoundFiles",
    "Judged",
    "find_folders",
    "find_path_table",
    "found_in",
    "judge",
    "list_some",
    "listed_keys",
]

log = logging.getLogger(__name__)

_WANTED = "_sparkinfer_wanted"

_LISTED = ["path", "length", "modificationTime"]
"""Columns of a listing that `where` and `keep` may name."""


def list_some(spark: SparkSession, locations: Iterable[str], *, key: str, recursive: bool = True) -> Listing:
    """`list_files`, with at least one file; tells the log what was left out.

    Raises:
        SourceError: nothing there.
    """
    locations = tuple(locations)
    listing = list_files(spark, locations, key=key, recursive=recursive)
    left_out = ", ".join(f"{count:,} {reason}" for reason, count in sorted(listing.left_out.items()))
    if left_out:
        log.warning("left out of the input: %s", left_out)
    if not listing.table.num_rows:
        hint = f"left out: {left_out}; hidden names begin with _ or ." if left_out else "nothing is there"
        raise EmptySourceError(f"no files in {', '.join(locations)}", key=key, hint=hint)
    return listing


@dataclass(frozen=True)
class FoundFiles:
    """The rows of an input of files before they become an `Input`: all of them, or some.

    Attributes:
        source: the spec.
        keys: columns that lead the prediction table.
        table: `LISTING_SCHEMA`: one file for every row of `named`.
        named: the leading columns of `Input.outcomes`.
        rows: of a path table with more to say than its distinct paths: `keys` of every row.
        nulls: whether some of `rows` have no path.
        left_out: entries of the listing that are no rows, by reason.
    """

    source: SourceSpec
    keys: tuple[str, ...]
    table: pa.Table
    named: pa.Table
    rows: DataFrame | None = None
    nulls: bool = False
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def units(self) -> pa.Table:
        """`ledger.UNITS` of every file as the input names it; of the rows without a path, one more, last."""
        units = pa.table([self.named[0], self.table["length"], self.table["modificationTime"]], schema=UNITS)
        return pa.concat_tables([units, pa.table([[None]] * 3, schema=UNITS)]) if self.nulls else units

    @property
    def row_count(self) -> int | None:
        """One for each file; not known for a path table with more to say."""
        return None if self.rows is not None else self.table.num_rows

    def take(self, positions: NDArray[np.int64]) -> FoundFiles:
        """Some of `units`, by their positions."""
        files = pa.array(positions[positions < self.table.num_rows])
        nulls = self.nulls and len(files) < len(positions)
        named = self.named.take(files)
        rows = self.rows
        if rows is not None:
            path = column(self.keys[0])
            wanted = local_frame(rows.sparkSession, pa.table({_WANTED: named[0]}))
            matched = rows.join(F.broadcast(wanted), path == F.col(_WANTED), "left_semi")
            rows = matched.unionByName(rows.where(path.isNull())) if nulls else matched
        return replace(self, table=self.table.take(files), named=named, rows=rows, nulls=nulls)

    def restored(self, gone: list[str | None]) -> FoundFiles:
        """With a row for each file that was listed when a snapshot was begun and is gone; not for a path table."""
        if self.source.kind != "images" or not gone:
            return self
        lost = listing_table(FileRow(str(path), None, None, "gone since it was listed") for path in gone)
        table = pa.concat_tables([self.table, lost])
        return found_in(self.source, table, self.left_out)

    def to_input(self, spark: SparkSession) -> Input:
        """Sorts out which files are worth reading, and says of the others why not."""
        return _file_input(spark, self)


def find_folders(spark: SparkSession, source: SourceSpec) -> FoundFiles:
    """Lists folders, files and globs and chooses files.

    Raises:
        SourceError: nothing there or nothing chosen; a wrong `where` or `keep`.
    """
    listed_keys(source)
    listing = list_some(spark, source.locations, key="source.images")
    table = _chosen(spark, listing.table, source)
    if not table.num_rows:
        key = "source.sample" if source.where is None else "source.where"
        raise EmptySourceError(f"none of {listing.table.num_rows:,} files is chosen", key=key)
    return found_in(source, table, listing.left_out)


def listed_keys(source: SourceSpec) -> tuple[str, ...]:
    """Columns that lead the prediction table of listed files.

    Raises:
        SourceError: a wrong `keep`.
    """
    for name in source.keep:
        if name not in _LISTED:
            raise SourceError(f"no column {name!r}", key="source.keep", allowed=_LISTED, hint=closest(name, _LISTED))
    keys = ("path", *source.keep)
    check_keys(keys)
    return keys


def found_in(source: SourceSpec, table: pa.Table, left_out: Counter[str]) -> FoundFiles:
    """The files of a listing (`LISTING_SCHEMA`), all of which are wanted."""
    keys = listed_keys(source)
    return FoundFiles(source, keys, table, table.select(keys).append_column(READ, table["path"]), left_out=left_out)


def _chosen(spark: SparkSession, table: pa.Table, source: SourceSpec) -> pa.Table:
    if source.where is not None or source.sample is not None:
        numbered = table.select(_LISTED).append_column("_row", pa.array(np.arange(table.num_rows)))
        rows = filtered(local_frame(spark, numbered), source, F.col("path")).select("_row")
        table = table.take(np.sort(to_arrow(rows)["_row"].to_numpy()))
    return table.slice(0, source.limit)


def find_path_table(spark: SparkSession, source: SourceSpec) -> FoundFiles:
    """Opens a table of paths, chooses its rows and looks up its files.

    Raises:
        SourceError: no such table, column or rows; a wrong `where`.
    """
    key = "source.paths"
    frame = open_path_table(spark, source.locations[0], source.path_column)
    path = named_column(frame, source.path_column, "source.path_column")
    if not isinstance(frame.select(path).schema[0].dataType, StringType):
        raise SourceError(f"the column {source.path_column!r} is no text", key="source.path_column")
    kept = [named_column(frame, name, "source.keep") for name in source.keep]
    rows = filtered(frame, source, path).select(path.alias(short_name(source.path_column)), *kept)
    keys = tuple(rows.columns)
    check_keys(keys)
    if source.limit is not None:
        # Read twice, for its paths and for its rows: only an ordered limit gives the same rows twice.
        rows = rows.orderBy(column(keys[0]).asc_nulls_last()).limit(source.limit)
    with explained(key):
        paths = to_arrow(rows.select(column(keys[0])))[0].combine_chunks()
    if not len(paths):
        raise EmptySourceError(f"no rows in {source.locations[0]}", key=key, hint="or `where` and `sample` leave none")
    distinct = pc.unique(paths.drop_null())
    table = look_up(spark, distinct.to_pylist())
    check_names(spark, table["path"], key)
    is_plain = len(distinct) == len(paths) and len(keys) == 1
    named = pa.table({keys[0] if is_plain else RAW: distinct, READ: table["path"]})
    nulls = paths.null_count > 0
    return FoundFiles(source, keys, table, named, rows=None if is_plain else rows, nulls=nulls)


def _file_input(spark: SparkSession, found: FoundFiles) -> Input:
    source, judged = found.source, judge(found.table, found.source.max_bytes)
    return Input(
        kind=source.kind,
        name=", ".join(source.locations),
        keys=found.keys,
        content_keys=("path",),
        files=judged.files,
        outcomes=local_frame(
            spark, found.named.append_column(CODE, judged.code).append_column(MESSAGE, judged.message)
        ),
        rows=found.rows,
        known=judged.known,
        left_out=dict(found.left_out),
    )


@dataclass(frozen=True)
class Judged:
    """What a listing says of its files before any is opened.

    Attributes:
        code: of every file, or null.
        message: of every file with a code, else null.
        files: those that are worth reading.
        known: how many have which code.
    """

    code: pa.ChunkedArray
    message: pa.ChunkedArray
    files: FileSet
    known: dict[str, int]


def judge(table: pa.Table, max_bytes: int) -> Judged:
    """Tells which files of a listing (`LISTING_SCHEMA`) are worth reading, and why the others are not."""
    missing = pa.scalar(None, pa.string())
    failed = pc.is_valid(table["problem"])
    too_large = pc.fill_null(pc.greater(table["length"], max_bytes), False)
    size = pc.binary_join_element_wise(
        table["length"].cast(pa.string()), f"bytes, allowed are {max_bytes:,} (source.max_bytes)", " "
    )
    code = pc.if_else(failed, str(ErrorCode.READ_FAILED), pc.if_else(too_large, str(ErrorCode.TOO_LARGE), missing))
    message = pc.if_else(failed, table["problem"], pc.if_else(too_large, size, missing))
    counts = pc.value_counts(code.drop_null()).to_pylist()
    # Several spellings in a path table may name one file.
    worthy = table.filter(pc.is_null(code)).group_by("path", use_threads=False).aggregate([("length", "first")])
    files = FileSet(worthy["path"], worthy["length_first"].to_numpy(), max_bytes)
    return Judged(code, message, files, {entry["values"]: entry["counts"] for entry in counts})
