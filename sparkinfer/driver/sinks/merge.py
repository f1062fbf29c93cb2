"""Rows of a Delta or Iceberg table replaced by others in one transaction: `MERGE INTO`. Driver side; nothing pickles.

By itself MERGE gives an old row at most one new one, and fails where several would do; but names of rows may be there
twice (a path table may name a file twice). So what is merged has two kinds of rows: names, which match old rows and
delete them, and new rows, which match nothing and are inserted. Readers see the table before it or after it.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from sparkinfer.core.errors import SinkError
from sparkinfer.core.spec import SinkSpec
from sparkinfer.driver.frames import column
from sparkinfer.driver.listing import hadoop_path
from sparkinfer.driver.names import quoted, table_name
from sparkinfer.driver.sinks.checks import explained_sink

__all__ = ["Replaced", "check_merge", "merge"]

_GOES = "_sparkinfer_goes"
_EXTENSIONS = "spark.sql.extensions"
_EXPLAIN_FAILED = "Error occurred during query planning"
"""What `ExplainCommand` answers in place of an exception."""


@dataclass(frozen=True)
class Replaced:
    """Which rows of a table go.

    Attributes:
        path: the table's column that names a row.
        names: one column, each name once; None: the names of the new rows.
        only: SQL condition on those rows, whose columns it calls `old.column`; never null.
    """

    path: str
    names: DataFrame | None = None
    only: str = "TRUE"


def check_merge(spark: SparkSession, sink: SinkSpec, columns: Sequence[str]) -> None:
    """Refuses what MERGE will not do, before the model sees an image.

    Args:
        spark: the session.
        sink: an existing Delta or Iceberg table.
        columns: of the new rows, the one that names a row first.

    Raises:
        SinkError: the table has other columns or cannot be named in SQL, or Spark has not been given the format's SQL
            extension.
    """
    replaced = Replaced(columns[0])
    with explained_sink(sink):
        old = spark.table(_target(spark, sink)).limit(0)
        differing = sorted(set(columns) ^ set(old.columns))
        if differing:
            raise SinkError(
                f"{sink.target!r} has {'a' if differing[0] in old.columns else 'no'} column {differing[0]!r}, unlike "
                "the rows to merge",
                key="sink.mode",
                hint="merge with the source.keep that wrote the table, or write to another table",
            )
        with _source(old, replaced) as source:
            answer = str(spark.sql(f"EXPLAIN {_statement(spark, sink, old.schema, source, replaced)}").first())
    if _EXPLAIN_FAILED in answer:
        raise SinkError(
            f"Spark cannot MERGE INTO {sink.target!r}",
            key="sink.format",
            hint=f"set {_EXTENSIONS} to the SQL extension of {sink.format}",
        )


def merge(rows: DataFrame, sink: SinkSpec, replaced: Replaced) -> None:
    """Replaces rows of a table in one transaction.

    Args:
        rows: new rows, with all columns of the table; lazy, computed once, and kept by the executors until the
            transaction is over: it reads them more than once. An executor that is lost meanwhile ends the job, and
            the table stays as it was.
        sink: an existing Delta or Iceberg table.
        replaced: the rows that go.

    Raises:
        SinkError: Spark refuses.
    """
    spark = rows.sparkSession
    new = rows.localCheckpoint()
    with explained_sink(sink), _source(new, replaced) as source:
        spark.sql(_statement(spark, sink, new.schema, source, replaced))


@contextmanager
def _source(new: DataFrame, replaced: Replaced) -> Iterator[str]:
    """What is merged, under the name of a temporary view."""
    names = new.select(column(replaced.path)).distinct() if replaced.names is None else replaced.names
    name = F.col(quoted(names.columns[0]))

    def of_name(field: str) -> Column:
        value = name if field == replaced.path else F.lit(None)
        return value.cast(new.schema[field].dataType).alias(field)

    goes = names.select(F.lit(True).alias(_GOES), *map(of_name, new.columns))
    comes = new.select(F.lit(False).alias(_GOES), *map(column, new.columns))
    view = f"sparkinfer_{uuid.uuid4().hex}"
    goes.union(comes).createOrReplaceTempView(view)
    try:
        yield view
    finally:
        new.sparkSession.catalog.dropTempView(view)


def _statement(spark: SparkSession, sink: SinkSpec, schema: StructType, source: str, replaced: Replaced) -> str:
    columns = [quoted(name) for name in schema.names]
    path = quoted(replaced.path)
    return f"""
        MERGE INTO {_target(spark, sink)} AS old USING {source} AS new
        ON new.{_GOES} AND old.{path} <=> new.{path} AND ({replaced.only})
        WHEN MATCHED THEN DELETE
        WHEN NOT MATCHED AND NOT new.{_GOES} THEN
            INSERT ({", ".join(columns)}) VALUES ({", ".join(f"new.{name}" for name in columns)})
    """  # noqa: S608 - every name is quoted, and conditions are our own


def _target(spark: SparkSession, sink: SinkSpec) -> str:
    """The table's name in SQL."""
    if sink.table:
        return table_name(sink.table, "sink.table")
    if sink.format != "delta":
        raise SinkError(
            f"rows of an {sink.format} table can be replaced where it has a name",
            key="sink.path",
            allowed=["sink.table"],
            hint="name the table with its catalogue: sink.table: catalogue.database.table",
        )
    return f"delta.{quoted(hadoop_path(spark, sink.target)[0].toString())}"
