"""`source:` -> `Input`: what a job will read, checked, counted and chosen before any image is opened. Driver side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from sparkinfer.core.errors import SourceError
from sparkinfer.core.spec import SourceSpec
from sparkinfer.driver.paths import has_glob, local_path
from sparkinfer.driver.sources.file_input import find_folders, find_path_table, list_some
from sparkinfer.driver.sources.inputs import Input, finish
from sparkinfer.driver.sources.local_files import walk
from sparkinfer.driver.sources.path_table import file_format
from sparkinfer.driver.sources.row_input import read_rows
from sparkinfer.driver.splits.manifest import open_files
from sparkinfer.driver.sql_errors import closest

__all__ = ["Input", "check_local_source", "finish", "read_images", "read_source"]


def check_local_source(source: SourceSpec) -> None:
    """Finds out, without Spark, that a local input is not there.

    Raises:
        SourceError: it names the location and what is there instead.
    """
    if source.kind in {"table", "query"} or (source.kind == "paths" and file_format(source.locations[0]) is None):
        return
    for location in source.locations:
        path = local_path(location)
        if path is None or has_glob(location):
            continue
        if path.exists():
            _check_what_is_there(path, location, source.kind)
            continue
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
        raise SourceError(
            f"{location!r} does not exist",
            key=f"source.{source.kind}",
            hint=(closest(path.name, names) if folder == path.absolute().parent else None) or f"{str(folder)!r} exists",
        )


def _check_what_is_there(path: Path, location: str, kind: str) -> None:
    """A folder without a file, or a file that is no Parquet, is told by looking."""
    if kind == "images" and path.is_dir():
        hidden: Counter[str] = Counter()
        if next(walk(str(path.absolute()), hidden), None) is None:
            left_out = ", ".join(f"{count} {reason}" for reason, count in sorted(hidden.items()))
            raise SourceError(
                f"{location!r} holds no files{f' but {left_out}' if left_out else ''}",
                key="source.images",
                hint="names that begin with _ or . are no rows"
                if left_out
                else "give a folder, file or glob of images",
            )
    if kind == "parquet" and path.is_file():
        with path.open("rb") as file:
            if file.read(4) != b"PAR1":
                raise SourceError(
                    f"{location!r} is no Parquet file", key="source.parquet", hint="image files are source.images"
                )


def read_source(spark: SparkSession, source: SourceSpec) -> Input:
    """Finds the input and chooses its rows.

    Raises:
        SourceError: it is missing or empty, a column is missing or of the wrong type, or SQL in it is wrong.
    """
    if source.kind == "images":
        return find_folders(spark, source).to_input(spark)
    if source.kind == "paths":
        return find_path_table(spark, source).to_input(spark)
    return read_rows(spark, source)


def read_images(spark: SparkSession, locations: str | Iterable[str], *, recursive: bool = True) -> DataFrame:
    """Image files as a DataFrame, for `predict` and for SQL. Lists them now, reads them when Spark runs it.

    Empty files are rows. Hidden names (`_` or `.` in front) are not; the log says how many.

    Args:
        spark: the session.
        locations: folder, file or glob on any Hadoop file system, or several of them.
        recursive: go into folders inside folders too.

    Returns:
        DataFrame(path string, modificationTime timestamp, length bigint, content binary). A file that can no longer be
        read when its turn comes fails its Spark task, as with Spark's own sources; a job (`source: {images: ...}`)
        makes it a coded row.

    Raises:
        SourceError: nothing there.
    """
    names = (locations,) if isinstance(locations, str) else tuple(locations)
    table = list_some(spark, names, key="locations", recursive=recursive).table
    return open_files(spark, table["path"].to_pylist(), table["length"].fill_null(1).to_numpy(), skip_unreadable=False)
