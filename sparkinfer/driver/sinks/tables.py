"""Tables of plain files in Spark's catalogue: made, added to, replaced, and what interrupted runs left of them.

    NAME_RUN        what a run that replaces NAME writes
    NAME_RUN_old    what it replaces, between two renames and until it is dropped

Driver side.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from sparkinfer.core.errors import SinkError
from sparkinfer.core.spec import SinkSpec
from sparkinfer.driver.listing import names_in
from sparkinfer.driver.names import quoted, table_name, table_parts
from sparkinfer.driver.paths import is_hidden
from sparkinfer.driver.sinks.formats import FILE_FORMATS, writer
from sparkinfer.driver.sinks.pending import own_pending

__all__ = ["check_table", "write_table"]

log = logging.getLogger(__name__)

_CATALOGUE_NAME = re.compile(r"[A-Za-z0-9_]+")
"""`SessionCatalog.validateName`."""


def check_table(spark: SparkSession, sink: SinkSpec) -> None:
    """Refuses a table of files that Spark would refuse after the model has run; puts back one that had stepped aside.

    Raises:
        SinkError: its name, or the folder that it would get.
    """
    if not _is_of_files(spark, sink):
        return
    last = table_parts(sink.target)[-1]
    if not _CATALOGUE_NAME.fullmatch(last):
        raise SinkError(
            f"Spark's catalogue takes no table named {last!r}",
            key="sink.table",
            allowed=["letters A to Z, digits and _"],
            hint="write to sink.path, or choose another name",
        )
    _clear_up(spark, sink)
    if not spark.catalog.tableExists(table_name(sink.target, "sink.table")):
        _check_new_folder(spark, sink)


def write_table(table: DataFrame, sink: SinkSpec, run_id: str) -> None:
    """`saveAsTable`; an existing table of files is replaced by a finished one, never emptied first.

    Args:
        table: the query.
        sink: with a table.
        run_id: of this run.

    Raises:
        JobFailedError: another job has cleared away unfinished files of this one.
    """
    spark = table.sparkSession
    target = table_name(sink.target, "sink.table")
    there = _is_of_files(spark, sink) and spark.catalog.tableExists(target)
    if there and sink.mode == "append":
        with own_pending(spark, _location(spark, target), run_id):
            writer(table, sink).mode("append").saveAsTable(target)
    elif there and sink.mode == "overwrite":
        _replace(table, sink, run_id)
    else:
        writer(table, sink).mode(sink.mode).saveAsTable(target)


def _replace(table: DataFrame, sink: SinkSpec, run_id: str) -> None:
    spark = table.sparkSession
    target, new = table_name(sink.target, "sink.table"), _beside(sink, run_id)
    old = _beside(sink, f"{run_id}_old")
    try:
        writer(table, sink).mode("error").saveAsTable(new)
        spark.sql(f"ALTER TABLE {target} RENAME TO {old}")
        try:
            spark.sql(f"ALTER TABLE {new} RENAME TO {target}")
        except BaseException:
            spark.sql(f"ALTER TABLE {old} RENAME TO {target}")
            raise
        spark.sql(f"DROP TABLE IF EXISTS {old}")
    finally:
        # Not the one whose old table is still away: with both there, the next run knows what happened.
        if spark.catalog.tableExists(target):
            spark.sql(f"DROP TABLE IF EXISTS {new}")


def _clear_up(spark: SparkSession, sink: SinkSpec) -> None:
    """Puts back a table that stepped aside for a run that was killed then; drops one whose successor has come."""
    target = table_name(sink.target, "sink.table")
    *above, last = table_parts(sink.target)
    place = f" IN {'.'.join(map(quoted, above))}" if above else ""
    shown = spark.sql(f"SHOW TABLES{place} LIKE '{last}_*'").collect()  # the name is letters, digits and _
    names = {str(row["tableName"]).lower() for row in shown}
    is_ours = re.compile(rf"{last.lower()}_([0-9a-f]{{32}})(_old)?")
    found = {(ours[1], bool(ours[2])) for name in names if (ours := is_ours.fullmatch(name))}
    there = spark.catalog.tableExists(target)
    for run_id, is_old in sorted(found):
        new, old = _beside(sink, run_id), _beside(sink, f"{run_id}_old")
        if is_old and (run_id, False) in found and not there:
            log.warning("%s is put back: a run that overwrote it was interrupted", sink.target)
            spark.sql(f"ALTER TABLE {old} RENAME TO {target}")
            spark.sql(f"DROP TABLE IF EXISTS {new}")
            there = True
        elif is_old and (run_id, False) not in found and there:
            spark.sql(f"DROP TABLE IF EXISTS {old}")
        elif not is_old and (run_id, True) not in found:
            log.warning("%s is of a run that overwrites %s: drop it if that was killed", new, sink.target)


def _check_new_folder(spark: SparkSession, sink: SinkSpec) -> None:
    """Spark looks at the folder of a new table when all rows are predicted, and wants it empty."""
    if "path" in map(str.lower, sink.options):
        return  # an external table, which may have files
    session: Any = spark._jsparkSession
    state = session.sessionState()
    name = state.sqlParser().parseTableIdentifier(table_name(sink.target, "sink.table"))
    folder = str(state.catalog().defaultTablePath(name))
    names = names_in(spark, folder) or []
    if not names:
        return
    if all(map(is_hidden, names)):
        what = "holds what a run that was interrupted, or one that is writing now, has not finished"
        hint = "delete the folder when no job writes the table"
    else:
        what = "holds files, and this session's catalogue knows no such table"
        hint = (
            "move or delete the folder; a catalogue that outlives a session is set with "
            "spark.sql.catalogImplementation=hive"
        )
    raise SinkError(f"{folder}, where the table {sink.target!r} would be, {what}", key="sink.table", hint=hint)


def _beside(sink: SinkSpec, ending: str) -> str:
    *above, last = table_parts(sink.target)
    return ".".join(map(quoted, [*above, f"{last}_{ending}"]))


def _location(spark: SparkSession, target: str) -> str:
    rows = spark.sql(f"DESCRIBE TABLE EXTENDED {target}").collect()
    return next(str(row["data_type"]) for row in rows if row["col_name"] == "Location")


def _is_of_files(spark: SparkSession, sink: SinkSpec) -> bool:
    """Whether Spark's own catalogue has it, or would."""
    *above, _ = table_parts(table_name(sink.target, "sink.table"))
    is_sparks = not above or spark.conf.get(f"spark.sql.catalog.{above[0]}", None) is None
    return is_sparks and sink.format in FILE_FORMATS
