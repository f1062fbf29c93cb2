"""Small tables between Python and Spark, in bulk, for pyspark 3.5 and 4. Driver side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from sparkinfer.driver.names import quoted

__all__ = ["column", "local_frame", "metadata_column", "settings", "struct", "to_arrow"]


def local_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """A DataFrame of an Arrow table."""
    if hasattr(DataFrame, "toArrow"):
        return spark.createDataFrame(table)
    from pyspark.sql.pandas.types import from_arrow_schema

    with settings(spark, {"spark.sql.execution.arrow.pyspark.enabled": "true"}):
        return spark.createDataFrame(table.to_pandas(), from_arrow_schema(table.schema))


def to_arrow(frame: DataFrame) -> pa.Table:
    """A DataFrame's rows as an Arrow table on the driver."""
    if hasattr(frame, "toArrow"):
        return frame.toArrow()
    from pyspark.sql.pandas.types import to_arrow_schema

    rows: Any = frame
    batches = rows._collect_as_arrow()  # noqa: SLF001 - what toPandas uses in 3.5
    return pa.Table.from_batches(batches) if batches else to_arrow_schema(frame.schema).empty_table()


def struct(columns: str) -> StructType:
    """The schema that a DDL string describes. Needs a session."""
    if hasattr(StructType, "fromDDL"):
        schema = StructType.fromDDL(columns)
    else:
        from pyspark.sql.types import _parse_datatype_string

        schema = _parse_datatype_string(columns)
    assert isinstance(schema, StructType)
    return schema


def column(name: str) -> Column:
    """A top-level column by its exact name, dots and backticks included."""
    return F.col(quoted(name))


def metadata_column(frame: DataFrame, name: str) -> Column:
    """A hidden column of a scan, such as `_metadata`, also where the data has a column of that name."""
    if hasattr(frame, "metadataColumn"):
        return frame.metadataColumn(name)
    java: Any = frame._jdf  # 3.5 has it in Java only
    make: Any = Column
    made: Column = make(java.metadataColumn(name))
    return made


@contextmanager
def settings(spark: SparkSession, values: Mapping[str, str | None]) -> Iterator[None]:
    """Sets session settings for a while; None unsets. What was there before comes back."""
    before = {key: spark.conf.get(key, None) for key in values}
    _put(spark, values)
    try:
        yield
    finally:
        _put(spark, before)


def _put(spark: SparkSession, values: Mapping[str, str | None]) -> None:
    for key, value in values.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)
