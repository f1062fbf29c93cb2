"""The input of a job as the rest of the driver sees it, and how it meets its predictions again. Driver side.

Rows that carry their bytes (Parquet, tables, queries) go through the model and come out: nothing to reconcile. Files
do not: one that is gone or unreadable when its task opens it gives no row, several rows may name one file, and some
are known to be hopeless before anything is read. So the files' input keeps `outcomes`, one row for every row that must
come out, and `finish` joins the predictions to it: what has no prediction says why.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkinfer.core.errors import ErrorCode
from sparkinfer.core.schema import PREDICTION_COLUMNS, RESULT_COLUMNS
from sparkinfer.core.secrets import LOGIN_PATTERN, LOGIN_REPLACEMENT, redacted
from sparkinfer.driver.frames import column
from sparkinfer.driver.splits.manifest import open_files

__all__ = ["CODE", "CONTENT", "MESSAGE", "RAW", "READ", "FileSet", "Input", "describe_files", "finish", "size_text"]

READ = "_sparkinfer_read"
"""Column of `Input.outcomes`: the qualified path that is read; null when nothing can be."""
RAW = "_sparkinfer_raw"
"""Column of `Input.outcomes` of a path table: the path as the table has it; each once."""
CODE = "_sparkinfer_code"
"""Column of `Input.outcomes`: error code known without reading, or null."""
MESSAGE = "_sparkinfer_message"
"""Column of `Input.outcomes`: its message."""

CONTENT = "_sparkinfer_content"
"""Image bytes of an input of rows, whose own columns may have any name."""

_SEEN = "_sparkinfer_seen"


@dataclass(frozen=True)
class FileSet:
    """The files that are worth reading.

    Attributes:
        paths: qualified, each once.
        lengths: bytes, int64 [files], by the listing.
        max_bytes: a file that has grown beyond it since is not read.
    """

    paths: pa.ChunkedArray
    lengths: NDArray[np.int64]
    max_bytes: int

    def open(
        self, spark: SparkSession, order: NDArray[np.int64] | None = None, sizes: NDArray[np.int64] | None = None
    ) -> DataFrame:
        """`path` and `content` of every file that can be read; lazy.

        Args:
            spark: the session.
            order: positions of all files in the order that Spark is told.
            sizes: of the files in that order, by which Spark packs them into tasks; their lengths by default.
        """
        paths = self.paths if order is None else self.paths.take(pa.array(order))
        files = open_files(
            spark,
            (path for chunk in paths.chunks for path in chunk.to_pylist()),
            self.lengths if sizes is None else sizes,
            skip_unreadable=True,
        )
        # Pushed into the scan, which then leaves the content unread.
        return files.where(F.col("length") <= self.max_bytes).select("path", "content")


@dataclass(frozen=True)
class Input:
    """One job's input, nothing of it read yet.

    Attributes:
        kind: images, parquet, table, query or paths.
        name: what was asked for, for messages.
        keys: columns of the input that lead every row of the prediction table, the one that names the row first.
        content_keys: columns that must travel through the model with `content_column`.
        content_column: image bytes in what the model sees.
        frame: `content_keys` and `content_column`; None for files.
        files: the files to read; None for rows.
        outcomes: for files, one row for every file or distinct path: `keys` (or `RAW`), `READ`, `CODE`, `MESSAGE`.
        rows: for a path table with more to say than its distinct paths: `keys` of every row.
        known: how many rows have which error code before anything is read.
        left_out: entries of the listing that are no rows, by reason.
    """

    kind: str
    name: str
    keys: tuple[str, ...]
    content_keys: tuple[str, ...]
    content_column: str = "content"
    frame: DataFrame | None = None
    files: FileSet | None = None
    outcomes: DataFrame | None = None
    rows: DataFrame | None = None
    known: Mapping[str, int] = field(default_factory=dict)
    left_out: dict[str, int] = field(default_factory=dict)

    @property
    def mean_bytes(self) -> float | None:
        """Mean length of an image, where it is known without reading."""
        if self.files is None or not len(self.files.lengths):
            return None
        return float(self.files.lengths.mean())

    def describe(self) -> str:
        """One line for a person; no secrets."""
        if self.files is None:
            return redacted(f"{self.kind} {self.name}")
        return redacted(describe_files(self.files, self.name, self.known, self.left_out))


def describe_files(files: FileSet, name: str, known: Mapping[str, int], left_out: Mapping[str, int]) -> str:
    """Files in one line; the arguments are attributes of `Input`."""
    parts = [f"{len(files.lengths):,} files, {size_text(int(files.lengths.sum()))} in {name}"]
    parts += [f"{count:,} {code} without reading" for code, count in sorted(known.items())]
    if left_out:
        parts.append("left out: " + ", ".join(f"{n:,} {reason}" for reason, n in sorted(left_out.items())))
    return "; ".join(parts)


def finish(source: Input, predictions: DataFrame, stamps: Mapping[str, str | None]) -> DataFrame:
    """The prediction table: exactly one row for every input row.

    Args:
        source: what was read.
        predictions: `source.content_keys` and `RESULT_COLUMNS` of the rows that could be read.
        stamps: value of every column of `STAMP_COLUMNS`.

    Returns:
        `source.keys` and `PREDICTION_COLUMNS`, in order and type. Lazy.
    """
    table = predictions
    if source.outcomes is not None:
        table = _with_outcomes(source.outcomes, predictions)
        if source.rows is not None:
            table = _with_rows(source.rows, source.keys[0], table)
        # A path leads the row as it was read, but for a login in it: a table is no place for secrets.
        named = F.regexp_replace(column(source.keys[0]), LOGIN_PATTERN, LOGIN_REPLACEMENT)
        table = table.withColumn(source.keys[0], named)
    stamped = table.withColumns({name: F.lit(value) for name, value in stamps.items()})
    # As SQL text: to build these expressions object by object takes ten times as many calls of the JVM.
    typed = (F.expr(f"CAST({c.name} AS {c.ddl}) AS {c.name}") for c in PREDICTION_COLUMNS)
    return _nullable(stamped.select(*map(column, source.keys), *typed))


def _nullable(table: DataFrame) -> DataFrame:
    """Every column nullable: a table that is read and written again is, and both must be of one schema in their files.

    Spark has no function for it. A condition that it cannot work out beforehand, and that always holds, does it.
    """
    firm = [field.name for field in table.schema if not field.nullable]
    return table.withColumns({name: F.when(F.spark_partition_id() >= 0, column(name)) for name in firm})


def _with_outcomes(outcomes: DataFrame, predictions: DataFrame) -> DataFrame:
    """Every row of `outcomes` with its prediction, or with the reason why there is none."""
    found = predictions.withColumnRenamed("path", READ).withColumn(_SEEN, F.lit(True))
    failure = {
        "error_stage": F.lit(str(ErrorCode.READ_FAILED.stage)),
        "error_code": F.coalesce(F.col(CODE), F.lit(str(ErrorCode.READ_FAILED))),
        "error_message": F.coalesce(
            F.col(MESSAGE), F.lit("could not be read: gone or changed since it was listed, no permission, or I/O error")
        ),
    }
    return _left_join(outcomes, found, READ).select(
        *map(column, (c for c in outcomes.columns if c not in {READ, CODE, MESSAGE})), *_or_failure(failure)
    )


def _with_rows(rows: DataFrame, path: str, table: DataFrame) -> DataFrame:
    """Every row of a path table with what became of its path; a null path has nothing to join."""
    failure = {
        "error_stage": F.lit(str(ErrorCode.READ_FAILED.stage)),
        "error_code": F.lit(str(ErrorCode.READ_FAILED)),
        "error_message": F.lit("the path is null"),
    }
    keyed = rows.withColumn(RAW, column(path))
    return _left_join(keyed, table.withColumn(_SEEN, F.lit(True)), RAW).select(
        *map(column, rows.columns), *_or_failure(failure)
    )


def _left_join(left: DataFrame, right: DataFrame, key: str) -> DataFrame:
    # By merge: Spark would rather broadcast a right side that it thinks small, and with it run the whole model inside
    # the broadcast, under `spark.sql.broadcastTimeout`.
    return left.join(right.hint("merge"), key, "left")


def _or_failure(failure: Mapping[str, Column]) -> list[Column]:
    return [
        F.when(F.col(_SEEN), F.col(c.name)).otherwise(failure.get(c.name, F.lit(None))).alias(c.name)
        for c in RESULT_COLUMNS
    ]


def size_text(count: float) -> str:
    """Bytes for a person: 3.5 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
