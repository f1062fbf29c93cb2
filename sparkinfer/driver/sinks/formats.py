"""Formats of plain files, and Spark's writer of a sink. Driver side."""

from __future__ import annotations

from pyspark.sql import DataFrame, DataFrameWriter

from sparkinfer.core.spec import SinkSpec

__all__ = ["FILE_FORMATS", "writer"]

FILE_FORMATS = {"parquet", "orc", "json", "avro"}
"""Whose tables are folders of files, committed by Hadoop's committers, and no more."""


def writer(table: DataFrame, sink: SinkSpec) -> DataFrameWriter:
    """Spark's writer, with the sink's format, options and partitions."""
    made = table.write.format(sink.format).options(**sink.options)
    return made.partitionBy(*sink.partition_by) if sink.partition_by else made
