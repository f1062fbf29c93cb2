"""Tables that keep their own books (Delta, Iceberg): Spark's streaming says what is new. Driver side.

Spark's own checkpoint remembers which batch has which rows of the table; `foreachBatch` hands every batch to the same
code that does a snapshot of files. A batch that was begun comes again after a crash, with the same number and rows.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sparkinfer.core.errors import SourceError
from sparkinfer.core.quantities import Amount
from sparkinfer.core.spec import JobSpec
from sparkinfer.driver.checkpoints.checkpoint import Checkpoint, explained_io
from sparkinfer.driver.checkpoints.snapshots import batch_rows
from sparkinfer.driver.listing import JAVA_ERRORS
from sparkinfer.driver.names import table_name
from sparkinfer.driver.sql_errors import explained

__all__ = ["admission", "stream_snapshots"]

_BYTES_PER_ROW = 100_000
"""An ImageNet photo, for sources that can be told bytes and no rows."""


def stream_snapshots(
    spark: SparkSession,
    spec: JobSpec,
    checkpoint: Checkpoint,
    batch: Callable[[DataFrame, int], None],
    stop: Event | None = None,
) -> None:
    """Runs `batch` for every piece of the table that is new.

    Args:
        batch: gets the piece with all the table's columns, and its number.
        stop: ends a continuous run.

    Raises:
        SourceError: the table cannot be streamed.
        Exception: what `batch` raised.
    """
    resume = spec.resume
    assert resume is not None
    raised: list[BaseException] = []

    def each(frame: DataFrame, number: int) -> None:
        try:
            batch(frame, number)
        except BaseException as error:
            raised.append(error)
            raise

    name, options = table_name(str(spec.source.table), "source.table"), admission(resume.snapshot, batch_rows(spec))
    with explained("source.table"):
        frame = spark.readStream.options(**options).table(name)
    writer: Any = frame.writeStream.foreachBatch(each).option("checkpointLocation", checkpoint.path("stream"))
    if resume.trigger_seconds is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{int(resume.trigger_seconds * 1000)} milliseconds")
    try:
        query = writer.start()
        while not query.awaitTermination(1):
            if stop is not None and stop.is_set():
                query.stop()
    except JAVA_ERRORS as error:
        if raised:
            raise raised[0] from None
        if checkpoint.path("stream") in str(error):
            with explained_io(checkpoint.path("stream"), "read"):
                raise
        raise SourceError(
            f"{spec.source.table!r} cannot be streamed: {str(error).strip().splitlines()[0]}", key="source.table"
        ) from error


def admission(every: Amount, rows_a_batch: int) -> dict[str, str]:
    """How much one batch takes, in the words of every source; a source passes over words that it does not know.

    Args:
        every: `resume.snapshot_every`.
        rows_a_batch: rows of a model batch.
    """
    if every.unit == "files":
        return {"maxFilesPerTrigger": str(every.count), "streaming-max-files-per-micro-batch": str(every.count)}
    if every.unit == "bytes":
        rows, size = max(1, every.count // _BYTES_PER_ROW), every.count
    else:
        rows, size = every.count * rows_a_batch, every.count * rows_a_batch * _BYTES_PER_ROW
    return {"maxBytesPerTrigger": str(size), "streaming-max-rows-per-micro-batch": str(rows)}
