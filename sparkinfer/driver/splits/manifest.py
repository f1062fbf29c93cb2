"""Reading exactly the files one names, cut into tasks exactly as one says. Driver side; Spark's executors read.

Spark's binaryFile source takes folders or a list of paths. It lists folders for itself, leaves out empty files and
some names, and asks about every listed path again (three calls each: 84 s for a million local files, hours on an
object store). But a folder with a file log, as Structured Streaming's file sink keeps one (`_spark_metadata/0`: a line
of JSON per file), is not listed at all: Spark believes the log. So we write such a log of the files we chose into a
temporary folder of the driver, let Spark load it (at once: the folder is then deleted), and nothing is asked about any
file until an executor opens it. The log's `size` only steers how files are packed into tasks (`packing`); the `length`
column is what the executor sees.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession

from sparkinfer.driver.frames import settings
from sparkinfer.driver.paths import url

__all__ = ["open_files"]

_RAW_LOCAL = {
    # Hadoop's default, LocalFileSystem, looks for a checksum file beside every file (a third of the time for small
    # files) and cannot open a name with a colon. The cache holds one instance per scheme whatever the class.
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}


def open_files(
    spark: SparkSession, paths: Iterable[str], sizes: NDArray[np.int64], *, skip_unreadable: bool
) -> DataFrame:
    """One row per file; lazy: content is read where and when Spark runs it.

    Args:
        spark: the session.
        paths: qualified paths, each once.
        sizes: what Spark packs files into tasks by; a size below 1 counts as 1, or Spark would leave the file out.
        skip_unreadable: a file that is gone or cannot be read gives no row; it fails the task otherwise.

    Returns:
        DataFrame(path string, modificationTime timestamp, length bigint, content binary).
    """
    options = {"recursiveFileLookup": "true", **_RAW_LOCAL}
    if skip_unreadable:
        options |= {"ignoreMissingFiles": "true", "ignoreCorruptFiles": "true"}
    with (
        tempfile.TemporaryDirectory(prefix="sparkinfer-") as folder,
        settings(spark, {"spark.sql.streaming.fileStreamSink.ignoreMetadata": "false"}),
    ):
        _write_log(Path(folder), paths, np.maximum(sizes, 1))
        return spark.read.format("binaryFile").options(**options).load(f"file://{folder}")


def _write_log(folder: Path, paths: Iterable[str], sizes: NDArray[np.int64]) -> None:
    """Version 1 of `FileStreamSinkLog`: batch 0 adds all files. URLs need no escapes in JSON."""
    log = folder / "_spark_metadata" / "0"
    log.parent.mkdir()
    with log.open("w", encoding="ascii") as file:
        file.write("v1")
        for path, size in zip(paths, sizes.tolist(), strict=True):
            file.write(
                f'\n{{"path":"{url(path)}","size":{size},"isDir":false,"modificationTime":0,'
                '"blockReplication":1,"blockSize":1,"action":"add"}'
            )
