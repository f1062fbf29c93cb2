"""Rows that carry their bytes: `parquet:`, `table:` and `query:` -> `Input`. Driver side; nothing is read yet."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StringType, StructType

from sparkinfer.core.errors import SourceError
from sparkinfer.core.spec import SourceSpec
from sparkinfer.driver.names import table_name
from sparkinfer.driver.sources.inputs import CONTENT, Input
from sparkinfer.driver.sources.selection import check_keys, filtered, named_column, short_name
from sparkinfer.driver.sql_errors import explained

__all__ = ["open_rows", "read_rows", "rows_of"]


def read_rows(spark: SparkSession, source: SourceSpec) -> Input:
    """Opens the source and chooses rows and columns.

    Raises:
        SourceError: it does not exist, a column is missing, the content is not binary, or SQL in it is wrong.
    """
    return rows_of(open_rows(spark, source), source)


def rows_of(frame: DataFrame, source: SourceSpec) -> Input:
    """Chooses rows and columns of an opened source, static or streaming.

    Raises:
        SourceError: a column is missing, the content is not binary, or SQL in it is wrong.
    """
    path = named_column(frame, source.path_column, "source.path_column", hint="name the column that names a row")
    kept = [named_column(frame, name, "source.keep") for name in source.keep]
    content = _content(frame, source.content_column)
    frame = filtered(frame, source, path)
    frame = frame.select(path.alias(short_name(source.path_column)), *kept, content.alias(CONTENT))
    if source.limit is not None:
        frame = frame.limit(source.limit)
    keys = tuple(frame.columns[:-1])
    check_keys(keys)
    return Input(
        kind=source.kind,
        name=", ".join(source.locations),
        keys=keys,
        content_keys=keys,
        content_column=CONTENT,
        frame=frame,
    )


def open_rows(spark: SparkSession, source: SourceSpec) -> DataFrame:
    """The source with all its rows and columns.

    Raises:
        SourceError: it does not exist or cannot be read.
    """
    with explained(f"source.{source.kind}"):
        if source.kind == "parquet":
            return spark.read.parquet(*source.locations)
        if source.kind == "table":
            return spark.table(table_name(source.locations[0], "source.table"))
        # In brackets, so that Spark takes a query and nothing that would change a table.
        query = source.locations[0].strip().rstrip(";")
        return spark.sql(f"SELECT * FROM (\n{query}\n)")  # noqa: S608 - it is the person's own query


def _content(frame: DataFrame, name: str) -> Column:
    key = "source.content_column"
    found = named_column(frame, name, key)
    type_ = frame.select(found).schema[0].dataType
    if isinstance(type_, BinaryType):
        return found
    hint = "image bytes are a binary column"
    if isinstance(type_, StringType):
        hint = f"turn text into bytes in a query: SELECT ..., unbase64({name}) AS {short_name(name)}"
    elif isinstance(type_, StructType):
        inner = [f"{name}.{field.name}" for field in type_ if isinstance(field.dataType, BinaryType)]
        hint = f"name its field: {' or '.join(inner)}" if inner else "it has no binary field"
    raise SourceError(f"the column {name!r} is {type_.simpleString()}, not binary", key=key, hint=hint)
