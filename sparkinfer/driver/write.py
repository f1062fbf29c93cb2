"""The prediction table's way to its sink. Driver side.

Only Spark's own committers write data. On a file system whose rename is atomic, a new or overwritten folder is written
beside its target under a hidden name and renamed when it is whole: a reader sees the old table or the new one, and a
job that dies leaves the old one in place. Object stores and transactional formats commit in one step by themselves.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

from sparkinfer.core.errors import SinkError
from sparkinfer.core.spec import TRANSACTIONAL, SinkSpec
from sparkinfer.driver.listing import hadoop_conf, hadoop_path, names_in
from sparkinfer.driver.names import quoted, table_name, table_parts
from sparkinfer.driver.paths import local_path
from sparkinfer.driver.sinks.checks import check_holds_arrays, check_layout, explained_sink
from sparkinfer.driver.sinks.merge import Replaced, check_merge, merge

__all__ = ["check_format", "check_local_target", "check_target", "put_back", "write"]

log = logging.getLogger(__name__)

_FILE_FORMATS = {"parquet", "orc", "json", "avro"}
_CATALOGUE_NAME = re.compile(r"[A-Za-z0-9_]+")
"""`SessionCatalog.validateName`."""
_ATOMIC_RENAME = {"file", "hdfs", "viewfs", "abfs", "abfss"}


def check_local_target(sink: SinkSpec) -> None:
    """Refuses an existing local output before Spark is started.

    Raises:
        SinkError: it is there and `mode` is error.
    """
    path = local_path(sink.path) if sink.path else None
    if path is not None and sink.mode == "error" and path.exists():
        raise _exists(sink)
    if path is not None and path.is_file():
        raise SinkError(f"{sink.path!r} is a file", key="sink.path", hint="the sink is a folder")


def check_target(spark: SparkSession, sink: SinkSpec, columns: list[str]) -> None:
    """Refuses a sink that cannot work before the model sees an image.

    Raises:
        SinkError: it exists and `mode` is error; or its format or a partition column is unknown.
    """
    check_format(spark, sink, columns)
    if sink.table:
        _check_table_name(spark, sink)
    if sink.path and sink.format in _FILE_FORMATS:
        put_back(spark, sink.path)
    with explained_sink(sink):
        check_layout(spark, sink)
        if sink.mode == "error" and _exists_already(spark, sink):
            raise _exists(sink)
    if sink.mode == "merge" and _exists_already(spark, sink):
        check_merge(spark, sink, columns)


def check_format(spark: SparkSession, sink: SinkSpec, columns: list[str]) -> None:
    """Refuses a format or a partition column that Spark or the prediction table does not have.

    Raises:
        SinkError: says what there is.
    """
    unknown = [name for name in sink.partition_by if name not in columns]
    if unknown:
        raise SinkError(f"no column {unknown[0]!r} to partition by", key="sink.partition_by", allowed=columns)
    check_holds_arrays(sink)
    with explained_sink(sink):
        _check_format(spark, sink)


def write(table: DataFrame, sink: SinkSpec, run_id: str) -> None:
    """Runs the job: everything is computed here, once, and becomes visible when it is whole.

    Raises:
        SinkError: somebody else made the target meanwhile.
    """
    with explained_sink(sink):
        _write(table, sink, run_id)


def _write(table: DataFrame, sink: SinkSpec, run_id: str) -> None:
    spark = table.sparkSession
    if sink.mode == "merge":
        if _exists_already(spark, sink):
            merge(table, sink, Replaced(table.columns[0]))
            return
        sink = sink.model_copy(update={"mode": "error"})
    if sink.table:
        _write_table(table, sink, run_id)
    elif sink.mode != "append" and sink.format in _FILE_FORMATS and _renames_atomically(spark, sink):
        _write_aside(table, sink, run_id)
    else:
        _writer(table, sink).mode(sink.mode).save(sink.path)


def _write_aside(table: DataFrame, sink: SinkSpec, run_id: str) -> None:
    spark = table.sparkSession
    path, fs = hadoop_path(spark, sink.target)
    aside = _sibling(spark, path, f".{path.getName()}.{run_id}.new")
    try:
        _writer(table, sink).mode("error").save(aside.toString())
        _rename(spark, aside, path, run_id, sink)
    finally:
        fs.delete(aside, True)


def _rename(spark: SparkSession, aside: Any, path: Any, run_id: str, sink: SinkSpec) -> None:
    """Puts `aside` in the place of `path`; with `mode: overwrite` the old folder steps back first."""
    _, fs = hadoop_path(spark, path.toString())
    old = None
    if sink.mode == "overwrite" and fs.exists(path):
        old = _sibling(spark, path, f".{path.getName()}.{run_id}.old")
        _move(spark, path, old)
    try:
        _move(spark, aside, path)
    except Exception:
        if old is not None:
            _move(spark, old, path)
        elif fs.exists(path):
            raise _exists(sink) from None
        raise
    if old is not None:
        fs.delete(old, True)


def put_back(spark: SparkSession, target: str) -> bool:
    """Undoes an overwrite that died between its two renames: the old folder, which had stepped back, returns.

    Args:
        spark: the session.
        target: folder of a table, or of one snapshot of it.

    Returns:
        Whether there was something to put back.
    """
    path, fs = hadoop_path(spark, target)
    if fs.exists(path):
        return False
    is_old = re.compile(rf"\.{re.escape(path.getName())}\.[0-9a-f]{{32}}\.old")
    old = [name for name in names_in(spark, path.getParent().toString()) or () if is_old.fullmatch(name)]
    if not old:
        return False
    log.warning("%s is put back: a run that overwrote it was interrupted", target)
    _move(spark, _sibling(spark, path, old[0]), path)
    return True


def _move(spark: SparkSession, source: Any, target: Any) -> None:
    """A rename that fails when the target exists; `FileSystem.rename` would move into it."""
    jvm: Any = spark.sparkContext._jvm
    options = spark.sparkContext._gateway.new_array(jvm.org.apache.hadoop.fs.Options.Rename, 0)  # type: ignore[union-attr]
    jvm.org.apache.hadoop.fs.FileContext.getFileContext(source.toUri(), hadoop_conf(spark)).rename(
        source, target, options
    )


def _sibling(spark: SparkSession, path: Any, name: str) -> Any:
    jvm: Any = spark.sparkContext._jvm
    return jvm.org.apache.hadoop.fs.Path(path.getParent(), name)


def _renames_atomically(spark: SparkSession, sink: SinkSpec) -> bool:
    _, fs = hadoop_path(spark, sink.target)
    return fs.getUri().getScheme() in _ATOMIC_RENAME


def _write_table(table: DataFrame, sink: SinkSpec, run_id: str) -> None:
    """`saveAsTable`; an existing plain-file table is replaced by a finished one, never emptied first."""
    spark = table.sparkSession
    target = table_name(sink.target, "sink.table")
    if sink.mode != "overwrite" or sink.format not in _FILE_FORMATS or not spark.catalog.tableExists(target):
        _writer(table, sink).mode(sink.mode).saveAsTable(target)
        return
    *above, last = table_parts(sink.target)
    aside = ".".join(map(quoted, [*above, f"{last}_{run_id}"]))
    try:
        _writer(table, sink).mode("error").saveAsTable(aside)
        spark.sql(f"DROP TABLE {target}")
        spark.sql(f"ALTER TABLE {aside} RENAME TO {target}")
    finally:
        spark.sql(f"DROP TABLE IF EXISTS {aside}")


def _writer(table: DataFrame, sink: SinkSpec) -> DataFrameWriter:
    writer = table.write.format(sink.format).options(**sink.options)
    return writer.partitionBy(*sink.partition_by) if sink.partition_by else writer


def _check_table_name(spark: SparkSession, sink: SinkSpec) -> None:
    """Spark's own catalogue looks at the name of a new table when its rows are written."""
    *above, last = table_parts(table_name(sink.target, "sink.table"))
    is_sparks = not above or spark.conf.get(f"spark.sql.catalog.{above[0]}", None) is None
    if is_sparks and sink.format in _FILE_FORMATS and not _CATALOGUE_NAME.fullmatch(last):
        raise SinkError(
            f"Spark's catalogue takes no table named {last!r}",
            key="sink.table",
            allowed=["letters A to Z, digits and _"],
            hint="write to sink.path, or choose another name",
        )


def _exists_already(spark: SparkSession, sink: SinkSpec) -> bool:
    if sink.table:
        return spark.catalog.tableExists(table_name(sink.table, "sink.table"))
    path, fs = hadoop_path(spark, sink.target)
    return bool(fs.exists(path))


def _exists(sink: SinkSpec) -> SinkError:
    return SinkError(
        f"{sink.target!r} is already there",
        key="sink.mode",
        allowed=["overwrite", "append", *(["merge"] if sink.format in TRANSACTIONAL else [])],
        hint="set sink.mode (or --mode), or choose another output",
    )


def _check_format(spark: SparkSession, sink: SinkSpec) -> None:
    jvm: Any = spark.sparkContext._jvm
    session: Any = spark._jsparkSession
    try:
        jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource(
            sink.format, session.sessionState().conf()
        )
    except Exception as error:
        raise SinkError(
            f"Spark knows no format {sink.format!r}",
            key="sink.format",
            allowed=[*sorted(_FILE_FORMATS), "delta, iceberg (with their packages on the class path)"],
            hint="add its package with spark.jars.packages",
        ) from error
