"""Files: `images:` and `paths:` -> `Input`. Driver side; files are listed or looked up, none is opened."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StringType

from sparkinfer.core.errors import ErrorCode, SourceError
from sparkinfer.core.spec import SourceSpec
from sparkinfer.driver.files import Listing, check_names, list_files
from sparkinfer.driver.frames import column, local_frame, to_arrow
from sparkinfer.driver.inputs import CODE, MESSAGE, RAW, READ, FileSet, Input
from sparkinfer.driver.path_table import look_up, open_path_table
from sparkinfer.driver.selection import check_keys, filtered, named_column, short_name
from sparkinfer.driver.sql_errors import closest, explained

__all__ = ["list_some", "read_folders", "read_path_table"]

log = logging.getLogger(__name__)

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
        raise SourceError(f"no files in {', '.join(locations)}", key=key, hint=hint)
    return listing


def read_folders(spark: SparkSession, source: SourceSpec) -> Input:
    """Lists folders, files and globs and chooses files.

    Raises:
        SourceError: nothing there or nothing chosen; a wrong `where` or `keep`.
    """
    for name in source.keep:
        if name not in _LISTED:
            raise SourceError(f"no column {name!r}", key="source.keep", allowed=_LISTED, hint=closest(name, _LISTED))
    keys = ("path", *source.keep)
    check_keys(keys)
    listing = list_some(spark, source.locations, key="source.images")
    table = _chosen(spark, listing.table, source)
    if not table.num_rows:
        key = "source.sample" if source.where is None else "source.where"
        raise SourceError(f"none of {listing.table.num_rows:,} files is chosen", key=key)
    rows = table.select(keys).append_column(READ, table["path"])
    return _file_input(spark, source, keys, table, rows, left_out=listing.left_out)


def _chosen(spark: SparkSession, table: pa.Table, source: SourceSpec) -> pa.Table:
    if source.where is not None or source.sample is not None:
        numbered = table.select(_LISTED).append_column("_row", pa.array(np.arange(table.num_rows)))
        rows = filtered(local_frame(spark, numbered), source, F.col("path")).select("_row")
        table = table.take(np.sort(to_arrow(rows)["_row"].to_numpy()))
    return table.slice(0, source.limit)


def read_path_table(spark: SparkSession, source: SourceSpec) -> Input:
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
        raise SourceError(f"no rows in {source.locations[0]}", key=key, hint="or `where` and `sample` leave none")
    distinct = pc.unique(paths.drop_null())
    table = look_up(spark, distinct.to_pylist())
    check_names(spark, table["path"], key)
    is_plain = len(distinct) == len(paths) and len(keys) == 1
    named = pa.table({keys[0] if is_plain else RAW: distinct, READ: table["path"]})
    return _file_input(spark, source, keys, table, named, rows=None if is_plain else rows)


def _file_input(
    spark: SparkSession,
    source: SourceSpec,
    keys: tuple[str, ...],
    table: pa.Table,
    named: pa.Table,
    *,
    rows: DataFrame | None = None,
    left_out: Counter[str] | None = None,
) -> Input:
    """Sorts out which files are worth reading, and says of the others why not.

    Args:
        table: `LISTING_SCHEMA`.
        named: the leading columns of `Input.outcomes`, row by row with `table`.
    """
    missing = pa.scalar(None, pa.string())
    failed = pc.is_valid(table["problem"])
    too_large = pc.fill_null(pc.greater(table["length"], source.max_bytes), False)
    size = pc.binary_join_element_wise(
        table["length"].cast(pa.string()), f"bytes, allowed are {source.max_bytes:,} (source.max_bytes)", " "
    )
    code = pc.if_else(failed, str(ErrorCode.READ_FAILED), pc.if_else(too_large, str(ErrorCode.TOO_LARGE), missing))
    message = pc.if_else(failed, table["problem"], pc.if_else(too_large, size, missing))
    counts = pc.value_counts(code.drop_null()).to_pylist()
    # Several spellings in a path table may name one file.
    worthy = table.filter(pc.is_null(code)).group_by("path", use_threads=False).aggregate([("length", "first")])
    return Input(
        kind=source.kind,
        name=", ".join(source.locations),
        keys=keys,
        content_keys=("path",),
        files=FileSet(worthy["path"], worthy["length_first"].to_numpy(), source.max_bytes),
        outcomes=local_frame(spark, named.append_column(CODE, code).append_column(MESSAGE, message)),
        rows=rows,
        known={entry["values"]: entry["counts"] for entry in counts},
        left_out=dict(left_out or {}),
    )
