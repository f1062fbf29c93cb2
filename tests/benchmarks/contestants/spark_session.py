"""A plain SparkSession on this machine, for the two stock Spark recipes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import DataFrame, SparkSession

from tests.benchmarks.contestants.job import Job

__all__ = ["SPARK_CONF", "local_session", "read_images"]

SPARK_CONF = {
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
"""Settings of all Spark contestants, sparkinfer included."""

ROWS_PER_ARROW_BATCH = 64
"""The default of 10,000 images would wait in memory, and the model with them, until a whole partition is read."""


@contextmanager
def local_session(job: Job) -> Iterator[SparkSession]:
    """A session with one task slot for each worker."""
    builder = SparkSession.builder.master(f"local[{job.workers}]")
    for key, value in SPARK_CONF.items():
        builder = builder.config(key, value)
    builder = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", ROWS_PER_ARROW_BATCH)
    spark = builder.getOrCreate()
    try:
        yield spark
    finally:
        spark.stop()


def read_images(spark: SparkSession, job: Job) -> DataFrame:
    """A frame with `path` and `content`."""
    if job.stored == "folder":
        return spark.read.format("binaryFile").load(job.images).select("path", "content")
    return spark.read.parquet(job.images).select("path", "content")
