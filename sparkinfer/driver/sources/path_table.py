"""Paths as a table has them -> files. Driver side.

A path is taken literally, never as a glob. Local files are looked up here; those of other file systems by the
executors, in one small Spark job that reads no content.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkinfer.core.errors import SourceError
from sparkinfer.driver.frames import column, settings, to_arrow
from sparkinfer.driver.listing import FileSystems, hadoop_path, refusal
from sparkinfer.driver.names import table_name
from sparkinfer.driver.paths import qualify
from sparkinfer.driver.sources import local_files
from sparkinfer.driver.sources.files import THREADS, list_files, listing_table
from sparkinfer.driver.sources.local_files import FileRow
from sparkinfer.driver.splits.manifest import open_files
from sparkinfer.driver.splits.packing import LED, leading_sizes
from sparkinfer.driver.sql_errors import explained

__all__ = ["file_format", "look_up", "open_path_table"]

_FORMATS = {".parquet": "parquet", ".csv": "csv", ".json": "json", ".jsonl": "json", ".txt": "text"}
_COMPRESSED = (".gz", ".bz2", ".zst", ".snappy", ".lz4")

LOOKUPS_PER_TASK = 2_000
"""One look-up of a remote file takes 1 to 20 ms."""

ASKED_EACH = 10_000
"""Files that are asked one by one whether they may be read: some 3,000 a second."""


def file_format(name: str) -> str | None:
    """Spark's name for the format of a list of paths, by its suffix.

    "folder" where only a look inside can tell; None for what must be a table's name.
    """
    suffix = next((name.removesuffix(c) for c in _COMPRESSED if name.endswith(c)), name).lower()
    found = next((format_ for end, format_ in _FORMATS.items() if suffix.endswith(end)), None)
    return found or ("folder" if "/" in name else None)


def open_path_table(spark: SparkSession, name: str, path_column: str) -> DataFrame:
    """The table or file that lists paths.

    Args:
        spark: the session.
        name: catalogue table, or `.parquet`, `.csv` (with a header), `.json` (an object a line) or `.txt` (a path a
            line) file, glob or folder.
        path_column: what to call the only column of a text file.

    Raises:
        SourceError: nothing there, or not readable.
    """
    key = "source.paths"
    format_ = file_format(name)
    if format_ == "folder":
        inside = list_files(spark, [name], key=key).table["path"].to_pylist()
        format_ = next((f for f in map(file_format, inside) if f not in {None, "folder"}), None)
        if format_ is None:
            raise SourceError(f"{name!r} has no list of paths", key=key, allowed=[f"*{end}" for end in _FORMATS])
    with explained(key):
        if format_ is None:
            return spark.table(table_name(name, key))
        if format_ == "text":
            lines = spark.read.text(name).select(F.col("value").alias(path_column))
            return lines.where(column(path_column) != "")
        options = {"header": "true", "escape": '"'} if format_ == "csv" else {}
        return spark.read.format(format_).options(**options).load(name)


def look_up(spark: SparkSession, raw: Sequence[str]) -> pa.Table:
    """What is at each path.

    Args:
        spark: its Hadoop settings count.
        raw: distinct paths as a person wrote them.

    Returns:
        `LISTING_SCHEMA`, one row for each of `raw`, in order. `path` is qualified; a path that Hadoop does not take
        stays as it is and has a `problem`.
    """
    systems = FileSystems(spark)
    rows: list[FileRow | None] = []
    remote: dict[int, str] = {}
    for position, text in enumerate(raw):
        try:
            path = qualify(text, systems.root_of)
        except ValueError as error:
            rows.append(FileRow(text, None, None, str(error)))
            continue
        if path.startswith(local_files.PREFIX + "/"):
            rows.append(local_files.look_up(path.removeprefix(local_files.PREFIX)))
        else:
            rows.append(None)
            remote[position] = path
    found = _look_up_remote(spark, sorted(set(remote.values()))) if remote else {}
    for position, path in remote.items():
        rows[position] = found.get(path, FileRow(path, None, None, "no such file, or it cannot be looked at"))
    return listing_table(row for row in rows if row is not None)


def _look_up_remote(spark: SparkSession, paths: list[str]) -> dict[str, FileRow]:
    refused = _refused(spark, paths)
    paths = [path for path in paths if path not in refused]
    order, sizes = leading_sizes((np.arange(len(paths)) // LOOKUPS_PER_TASK).astype(np.int32))
    with settings(spark, LED):
        files = open_files(spark, (paths[i] for i in order), sizes, skip_unreadable=True)
        found = to_arrow(files.select("path", "length", "modificationTime"))
    times = found["modificationTime"].cast(pa.int64())
    columns = zip(found["path"].to_pylist(), found["length"].to_pylist(), times.to_pylist(), strict=True)
    seen = {path: FileRow(path, length, modified, None) for path, length, modified in columns}
    return seen | {path: FileRow(path, None, None, reason) for path, reason in refused.items()}


def _refused(spark: SparkSession, paths: list[str]) -> dict[str, str]:
    """Files that may not be read: Spark (since 3.5.4) fails the task that meets one.

    Of very many files, one of a folder is asked for all of them; only where that one is refused, each.
    """
    systems = {root: hadoop_path(spark, root)[1] for root in {_root(path) for path in paths}}

    def ask(path: str) -> str | None:
        return refusal(spark, systems[_root(path)], path)

    with ThreadPoolExecutor(THREADS) as pool:
        if len(paths) > ASKED_EACH:
            folders: defaultdict[str, list[str]] = defaultdict(list)
            for path in paths:
                folders[path.rsplit("/", 1)[0]].append(path)
            first = pool.map(ask, [inside[0] for inside in folders.values()])
            paths = [path for reason, inside in zip(first, folders.values(), strict=True) if reason for path in inside]
        return {path: reason for path, reason in zip(paths, pool.map(ask, paths), strict=True) if reason}


def _root(path: str) -> str:
    return "/".join(path.split("/", 3)[:3]) + "/"
