"""Which image files there are: folders, files and globs, on any Hadoop file system. Driver side.

Spark's own listing leaves out empty files and hidden names without a word. Here an empty file is a row, a name that
is left out is counted, and a file that cannot be read is a row that says so. Only paths, lengths and times pass
through Python, as Arrow columns: some 100 bytes a file.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from sparkinfer.core.errors import SourceError, UserError
from sparkinfer.driver.listing import (
    JAVA_ERRORS,
    Status,
    file_name_charset,
    hadoop_path,
    is_missing,
    java_reason,
    refusal,
    statuses,
    strings,
)
from sparkinfer.driver.paths import has_glob, is_hidden
from sparkinfer.driver.sources import local_files
from sparkinfer.driver.sources.local_files import FileRow

__all__ = ["LISTING_SCHEMA", "THREADS", "Listing", "check_names", "each_once", "list_files", "listing_table"]

LISTING_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("length", pa.int64()),
        ("modificationTime", pa.timestamp("us", tz="UTC")),
        ("problem", pa.string()),
    ]
)
"""One file: qualified path; bytes; last change; why it cannot be read, if that is known. Length and time are null
where the file cannot be looked at."""

THREADS = 16
"""Folders listed at once on a remote file system: each waits for an answer, not for a core."""


@dataclass(frozen=True)
class Listing:
    """Files found, and what was left out.

    Attributes:
        table: `LISTING_SCHEMA`, ordered by path, each path once.
        left_out: entries that are no rows, by reason: `hidden`, `hidden folders`, `special` (pipes, sockets, devices),
            `link loops`, `named twice`.
    """

    table: pa.Table
    left_out: Counter[str] = field(default_factory=Counter)


def list_files(spark: SparkSession, locations: Iterable[str], *, key: str, recursive: bool = True) -> Listing:
    """Finds all files of folders, files and globs.

    Args:
        spark: its Hadoop settings count.
        locations: paths; one that exists as it stands is never read as a glob.
        key: the setting that named the locations, for messages.
        recursive: go into folders inside folders too.

    Raises:
        SourceError: a location does not exist, a glob matches nothing, or a folder may not be listed.
    """
    left_out: Counter[str] = Counter()
    tables = []
    for location in locations:
        try:
            path, fs = hadoop_path(spark, location)
            walk = _walk_local if path.toUri().getScheme() == "file" else _walk_remote
            tables.append(listing_table(walk(spark, fs, _named(spark, fs, path), left_out, recursive)))
        except UserError as error:
            raise SourceError(error.message, key=key, allowed=error.allowed, hint=error.hint) from error
        except JAVA_ERRORS as error:
            # Hadoop's globs stop at a name with a colon.
            hint = "name the folder instead of a glob" if has_glob(location) else None
            raise SourceError(f"{location!r} cannot be listed: {java_reason(error)}", key=key, hint=hint) from error
    table = each_once(pa.concat_tables(tables), left_out)
    check_names(spark, table["path"], key)
    return Listing(table, left_out)


def check_names(spark: SparkSession, paths: pa.ChunkedArray, key: str) -> None:
    """Refuses names of local files that Java cannot open for want of a locale.

    Raises:
        SourceError: says how to start Java.
    """
    local = pc.starts_with(paths, local_files.PREFIX + "/")
    odd = pc.sum(pc.and_(local, pc.invert(pc.string_is_ascii(paths)))).as_py()
    if odd and (charset := file_name_charset(spark)).upper() not in {"UTF-8", "UTF8"}:
        raise SourceError(
            f"{odd:,} file names need UTF-8, but Java was started in a locale of {charset} and cannot open them",
            key=key,
            hint="export LC_ALL=C.UTF-8 before spark-submit; on a cluster also spark.executorEnv.LC_ALL=C.UTF-8",
        )


def listing_table(rows: Iterable[FileRow]) -> pa.Table:
    """Rows as `LISTING_SCHEMA`, built in pieces: a million Python tuples at once would take ten times the memory."""
    rows = iter(rows)
    pieces = [LISTING_SCHEMA.empty_table()]
    while piece := list(islice(rows, 50_000)):
        columns = [pa.array(values, type_) for values, type_ in zip(zip(*piece, strict=True), _TYPES, strict=True)]
        pieces.append(pa.table(columns, schema=pa.schema(zip(LISTING_SCHEMA.names, _TYPES, strict=True))))
    return pa.concat_tables([piece.cast(LISTING_SCHEMA) for piece in pieces])


_TYPES = (pa.string(), pa.int64(), pa.int64(), pa.string())


def each_once(table: pa.Table, left_out: Counter[str]) -> pa.Table:
    """Files in the order of their paths; one that is there several times once, counted in `left_out`."""
    table = table.sort_by("path")
    paths = table["path"].combine_chunks()
    if len(paths) < 2:
        return table
    again = pc.equal(paths[1:], paths[:-1])
    twice = pc.sum(again).as_py()
    if not twice:
        return table
    left_out["named twice"] += twice
    return table.filter(pa.concat_arrays([pa.array([True]), pc.invert(again)]))


@dataclass(frozen=True)
class _Named:
    """What a location names: a Java array of `FileStatus`, and the glob that matched it, if it is one."""

    statuses: Any
    glob: str | None = None

    def is_wanted(self, path: str, left_out: Counter[str]) -> bool:
        """False for a hidden name that wildcards matched; one that the pattern spells out is wanted."""
        spelled = set((self.glob or path).replace("\\", "").split("/"))
        if not any(is_hidden(part) for part in path.split("/") if part.replace("\\", "") not in spelled):
            return True
        left_out["hidden"] += 1
        return False


def _named(spark: SparkSession, fs: Any, path: Any) -> _Named:
    try:
        gateway: Any = spark.sparkContext._gateway
        array = gateway.new_array(gateway.jvm.org.apache.hadoop.fs.FileStatus, 1)
        array[0] = fs.getFileStatus(path)
        return _Named(array)
    except JAVA_ERRORS as error:
        if not is_missing(error):
            raise
    text = path.toString()
    if not has_glob(text):
        raise SourceError(f"{text!r} does not exist", hint="relative paths start at the working directory")
    matched = fs.globStatus(path)
    if not matched:
        raise SourceError(f"{text!r} matches nothing", hint="Hadoop globs know * ? [..] {..}, but no **")
    return _Named(matched, glob=text)


def _walk_local(
    spark: SparkSession, _fs: Any, named: _Named, left_out: Counter[str], recursive: bool
) -> Iterator[FileRow]:
    jvm: Any = spark.sparkContext._jvm
    for path in strings(spark, jvm.org.apache.hadoop.fs.FileUtil.stat2Paths(named.statuses)):
        if not named.is_wanted(path, left_out):
            continue
        plain = path.removeprefix(local_files.PREFIX)
        if os.path.isdir(plain):  # noqa: PTH112 - a glob may match a million paths
            yield from local_files.walk(plain, left_out, recursive=recursive)
        else:
            yield local_files.look_up(plain)


def _walk_remote(
    spark: SparkSession, fs: Any, named: _Named, left_out: Counter[str], recursive: bool
) -> Iterator[FileRow]:
    """Breadth first, many folders at once: one `listStatus` each, as cheap for memory as Hadoop has it."""
    files, folders = _split(e for e in statuses(spark, named.statuses) if named.is_wanted(e.path, left_out))
    yield from _rows(spark, fs, files)
    with ThreadPoolExecutor(THREADS) as pool:
        pending = {pool.submit(_list_folder, spark, fs, folder.path) for folder in folders}
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                found = future.result()
                left_out.update(found.left_out)
                yield from found.rows
                if recursive:
                    pending |= {pool.submit(_list_folder, spark, fs, path) for path in found.folders}


@dataclass(frozen=True)
class _Folder:
    rows: list[FileRow]
    folders: list[str]
    left_out: Counter[str]


def _list_folder(spark: SparkSession, fs: Any, folder: str) -> _Folder:
    jvm: Any = spark.sparkContext._jvm
    try:
        entries = list(statuses(spark, fs.listStatus(jvm.org.apache.hadoop.fs.Path(folder))))
    except JAVA_ERRORS as error:
        if is_missing(error):
            return _Folder([], [], Counter())  # deleted since its parent was listed
        raise SourceError(
            f"the folder {folder!r} cannot be listed: {java_reason(error)}",
            hint="make it readable, or name the folders beside it in a list",
        ) from error
    files, folders = _split(e for e in entries if not is_hidden(e.name))
    hidden, hidden_folders = _split(e for e in entries if is_hidden(e.name))
    left_out = +Counter({"hidden": len(hidden), "hidden folders": len(hidden_folders)})  # + drops zeros
    return _Folder(_rows(spark, fs, files), [f.path for f in folders], left_out)


def _split(entries: Iterable[Status]) -> tuple[list[Status], list[Status]]:
    files: list[Status] = []
    folders: list[Status] = []
    for entry in entries:
        (folders if entry.is_folder else files).append(entry)
    return files, folders


def _rows(spark: SparkSession, fs: Any, files: list[Status]) -> list[FileRow]:
    """Rows of one folder's files. Since 3.5.4 Spark fails the task that meets a file it may not read, so ask before.

    Whoever may read one file may read all of the same folder, owner, group and permission: one question for each kind.
    """
    refused: dict[tuple[str, ...], str | None] = {}
    rows = []
    for file in files:
        kind = (file.path.rsplit("/", 1)[0], *file.rights)
        may_all_read = file.rights[2][6:7] == "r"
        if not may_all_read and kind not in refused:
            refused[kind] = refusal(spark, fs, file.path)
        rows.append(FileRow(file.path, file.length, file.modified * 1000, refused.get(kind)))
    return rows
