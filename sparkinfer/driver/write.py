"""The prediction table's way to its sink. Driver side.

Only Spark's own committers write data. On a file system whose rename is atomic, a new or overwritten folder is written
beside its target under a hidden name and renamed when it is whole: a reader sees the old table or the new one, and a
job that dies leaves the old one in place. Rows that are added to a folder are written under a hidden name in it, and
their files move when all are whole. Object stores and transactional formats commit in one step by themselves.
"""

from __future__ import annotations

import logging
import re
from contextlib import nullcontext
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sparkinfer.core.errors import SinkError
from sparkinfer.core.spec import TRANSACTIONAL, SinkSpec
from sparkinfer.driver.listing import JAVA_ERRORS, child, hadoop_conf, hadoop_path, names_in
from sparkinfer.driver.names import table_name
from sparkinfer.driver.paths import local_path
from sparkinfer.driver.sinks.append import is_moving, move_in
from sparkinfer.driver.sinks.aside import kept_alive, sibling
from sparkinfer.driver.sinks.checks import check_holds_arrays, check_layout, explained_sink
from sparkinfer.driver.sinks.formats import FILE_FORMATS, writer
from sparkinfer.driver.sinks.merge import Replaced, check_merge, merge
from sparkinfer.driver.sinks.pending import own_pending
from sparkinfer.driver.sinks.tables import check_table, write_table

__all__ = ["check_format", "check_local_target", "check_target", "put_back", "write"]

log = logging.getLogger(__name__)

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
        with explained_sink(sink):
            check_table(spark, sink)
    if sink.path and sink.format in FILE_FORMATS:
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


def write(table: DataFrame, sink: SinkSpec, run_id: str, *, alone: bool = False) -> None:
    """Runs the job: everything is computed here, once, and becomes visible when it is whole.

    Args:
        table: the query.
        sink: where to.
        run_id: of this run.
        alone: a lock keeps others from the target, and its holder clears away what dead runs have left.

    Raises:
        SinkError: somebody else made the target meanwhile.
    """
    with explained_sink(sink):
        _write(table, sink, run_id, alone=alone)


def _write(table: DataFrame, sink: SinkSpec, run_id: str, *, alone: bool) -> None:
    spark = table.sparkSession
    if sink.mode == "merge":
        if _exists_already(spark, sink):
            merge(table, sink, Replaced(table.columns[0]))
            return
        sink = sink.model_copy(update={"mode": "error"})
    if sink.table:
        write_table(table, sink, run_id)
    elif sink.format in FILE_FORMATS and _renames_atomically(spark, sink):
        _write_aside(table, sink, run_id, alone=alone)
    elif sink.format in FILE_FORMATS and sink.mode == "append":
        with own_pending(spark, sink.target, run_id):
            writer(table, sink).mode("append").save(sink.path)
    else:
        writer(table, sink).mode(sink.mode).save(sink.path)


def _write_aside(table: DataFrame, sink: SinkSpec, run_id: str, *, alone: bool) -> None:
    spark = table.sparkSession
    path, fs = hadoop_path(spark, sink.target)
    # Rows are added from within the folder: what is above it may be another file system, or another person's.
    adds = sink.mode == "append" and fs.exists(path)
    place = child(spark, path, "added") if adds else path
    aside = sibling(spark, place, f".{place.getName()}.{run_id}.new")
    with nullcontext() if alone else kept_alive(spark, place, run_id) as sign:
        try:
            writer(table, sink).mode("error").save(aside.toString())
            if sign is not None:
                sign.check()
            if adds:
                move_in(spark, aside, path)
            else:
                _rename(spark, aside, path, run_id, sink)
        finally:
            # Not while the old table is away, or files are half moved: by what is there the next run undoes it.
            is_away = fs.exists(sibling(spark, path, f".{path.getName()}.{run_id}.old")) and not fs.exists(path)
            if not is_away and not is_moving(spark, aside):
                fs.delete(aside, True)


def _rename(spark: SparkSession, aside: Any, path: Any, run_id: str, sink: SinkSpec) -> None:
    """Puts `aside` in the place of `path`; with `mode: overwrite` the old folder steps back first."""
    _, fs = hadoop_path(spark, path.toString())
    old = None
    if sink.mode == "overwrite" and fs.exists(path):
        old = sibling(spark, path, f".{path.getName()}.{run_id}.old")
        _move(spark, path, old)
    try:
        _move(spark, aside, path)
    except BaseException as error:
        if old is not None and not fs.exists(path):
            _move(spark, old, path)
        if old is not None or not isinstance(error, JAVA_ERRORS) or not fs.exists(path):
            raise
        if sink.mode != "append":
            raise _exists(sink) from None
        move_in(spark, aside, path)  # two runs made the folder
    if old is not None:
        fs.delete(old, True)


def put_back(spark: SparkSession, target: str) -> bool:
    """Undoes an overwrite that died between its two renames: the old folder, which had stepped back, returns.

    An old folder whose successor is not there has been replaced, and is what is left of it: that stays where it is.

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
    names = set(names_in(spark, path.getParent().toString()) or ())
    old = sorted(name for name in names if is_old.fullmatch(name) and f"{name.removesuffix('.old')}.new" in names)
    if not old:
        return False
    log.warning("%s is put back: a run that overwrote it was interrupted", target)
    _move(spark, sibling(spark, path, old[0]), path)
    return True


def _move(spark: SparkSession, source: Any, target: Any) -> None:
    """A rename that fails when the target exists; `FileSystem.rename` would move into it."""
    jvm: Any = spark.sparkContext._jvm
    options = spark.sparkContext._gateway.new_array(jvm.org.apache.hadoop.fs.Options.Rename, 0)  # type: ignore[union-attr]
    jvm.org.apache.hadoop.fs.FileContext.getFileContext(source.toUri(), hadoop_conf(spark)).rename(
        source, target, options
    )


def _renames_atomically(spark: SparkSession, sink: SinkSpec) -> bool:
    _, fs = hadoop_path(spark, sink.target)
    return fs.getUri().getScheme() in _ATOMIC_RENAME


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
            allowed=[*sorted(FILE_FORMATS), "delta, iceberg (with their packages on the class path)"],
            hint="add its package with spark.jars.packages",
        ) from error
