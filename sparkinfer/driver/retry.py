"""`--retry-errors`: the failed rows of an earlier output, run again and put in their own places. Driver side.

Of files, the earlier table itself says which to read: its failed rows are a path table. Rows that carry their bytes are
found again in the input by the column that names them; where several rows have one name and some of them failed, all
of them run again, as nothing tells them apart. A failed row whose input is gone, or no longer the same number of
rows, stays as it is.

The table keeps its number of rows. It is replaced as `driver.write` replaces one: readers see the old table until the
new one is whole. Where a resumable run wrote it, in a folder for each snapshot, only folders with failed rows are
replaced, each in one step. Of a Delta or Iceberg table only the rows are replaced, in one transaction (`driver.merge`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkinfer.core.errors import ErrorCode, SinkError, SpecError
from sparkinfer.core.schema import PREDICTION_COLUMNS
from sparkinfer.core.spec import TRANSACTIONAL, JobSpec, SinkSpec, SourceSpec
from sparkinfer.driver.frames import column, local_frame, settings, to_arrow
from sparkinfer.driver.listing import child, hadoop_path, names_in
from sparkinfer.driver.names import table_name
from sparkinfer.driver.paths import literal
from sparkinfer.driver.sinks.checks import check_layout
from sparkinfer.driver.sinks.merge import Replaced, check_merge, merge
from sparkinfer.driver.sinks.snapshot_sink import COLUMN
from sparkinfer.driver.sources.file_input import FoundFiles
from sparkinfer.driver.sources.files import check_names
from sparkinfer.driver.sources.inputs import RAW, READ, Input
from sparkinfer.driver.sources.path_table import look_up
from sparkinfer.driver.sources.row_input import read_rows
from sparkinfer.driver.sources.selection import short_name
from sparkinfer.driver.sql_errors import quiet, sentence
from sparkinfer.driver.write import put_back, write
from sparkinfer.executor.report import Tally

__all__ = ["Retry", "find_failed", "write_retried"]

_FORMATS = ("parquet", "orc", *TRANSACTIONAL)
"""Formats that keep the types of columns: what is kept is read and written again."""

_BROADCAST_ROWS = 2_000_000
"""Names of rows up to this number go to all executors, some 200 MB; more are joined as Spark sees fit."""

_PUSHED_ROWS = 1_000
"""Names of rows up to this number are told to the input's files, which then skip what cannot hold them."""

_AGAIN = "_sparkinfer_again"
_PREDICTIONS = {c.name for c in PREDICTION_COLUMNS}


@dataclass(frozen=True)
class Retry:
    """What an earlier output has to run again.

    Attributes:
        source: the rows to run; their keys are all columns of the table that are no predictions. None: nothing to run.
        kept: the rows of the table that stay as they are.
        rows: number of rows that run again.
        failed: of these, failed ones; where several rows have one name, good ones run with them.
        stay: failed rows that stay as they are: their input is gone or not the same any more.
        counts: of `kept`.
        snapshots: the snapshots that hold the rows; empty where the output is one table.
        replaced: the same rows in the words of `merge`; None where the source is.
        units: `ledger.UNITS` of the files that run again; None where rows carry their bytes.
    """

    source: Input | None
    kept: DataFrame
    rows: int = 0
    failed: int = 0
    stay: int = 0
    counts: Tally = field(default_factory=Tally)
    snapshots: tuple[str, ...] = ()
    replaced: Replaced | None = None
    units: pa.Table | None = None

    def describe(self) -> str:
        """One line for a person."""
        stay = f"; {self.stay:,} stay, their input is gone or has changed" if self.stay else ""
        return f"{self.rows:,} failed rows run again{stay}; {self.counts.rows:,} rows are kept"


def find_failed(spark: SparkSession, spec: JobSpec, codes: Sequence[str] = ()) -> Retry:
    """Finds what to run again in the output that `spec.sink` names.

    Args:
        spark: the session.
        spec: the job that wrote the output.
        codes: only rows with these error codes; all by default.

    Raises:
        SpecError: an unknown code.
        SinkError: there is no such output, it is none of this job, or of a format that cannot be read back exactly.
        SourceError: the input is missing or has other columns.
    """
    unknown = [code for code in codes if code not in set(ErrorCode)]
    if unknown:
        raise SpecError(f"unknown error code {unknown[0]!r}", key="--retry-code", allowed=list(ErrorCode))
    table = _open(spark, spec.sink)
    if spec.sink.format in TRANSACTIONAL:
        check_merge(spark, spec.sink, table.columns)
    search = _Search(spark, table, tuple(codes), _has_snapshots(spark, spec.sink, table))
    if spec.source.kind in {"images", "paths"}:
        return search.files(spec.source)
    return search.rows(spec.source)


def _open(spark: SparkSession, sink: SinkSpec) -> DataFrame:
    """The earlier output, its key columns first."""
    key = "sink.table" if sink.table else "sink.path"
    if sink.format not in _FORMATS:
        raise SinkError(f"{sink.format} cannot be retried", key="sink.format", allowed=_FORMATS)
    hint = "--retry-errors needs the output of an earlier run of this job"
    if sink.path:
        path, fs = hadoop_path(spark, sink.path)
        if not fs.exists(path) and not put_back(spark, sink.path):
            raise SinkError(f"{sink.path!r} does not exist", key=key, hint=hint)
    try:
        # Partition values as the text they are: as a number, version 03 would become 3.
        with quiet(), settings(spark, {"spark.sql.sources.partitionColumnTypeInference.enabled": "false"}):
            table = spark.table(table_name(sink.table, key)) if sink.table else _read(spark, sink)
    except AnalysisException as error:
        raise SinkError(f"{sink.target!r} cannot be read: {sentence(str(error))}", key=key, hint=hint) from error
    missing = sorted(_PREDICTIONS - set(table.columns))
    if missing:
        raise SinkError(f"{sink.target!r} is no prediction table: it has no column {missing[0]!r}", key=key)
    return table.select(*map(column, _keys(table)), *(F.col(c.name).cast(c.ddl) for c in PREDICTION_COLUMNS))


def _read(spark: SparkSession, sink: SinkSpec) -> DataFrame:
    # What keeps its own books takes a path as it is; of files Spark takes a glob.
    path = sink.target if sink.format in TRANSACTIONAL else literal(sink.target)
    return spark.read.format(sink.format).load(path)


def _keys(table: DataFrame) -> tuple[str, ...]:
    return tuple(name for name in table.columns if name not in _PREDICTIONS)


def _has_snapshots(spark: SparkSession, sink: SinkSpec, table: DataFrame) -> bool:
    """Whether a resumable run wrote the output; the layout of any other is compared with the sink's.

    Raises:
        SinkError: it is partitioned by other columns than the sink names.
    """
    if not sink.path or sink.format in TRANSACTIONAL:
        return False
    if COLUMN in table.columns and any(name.startswith(f"{COLUMN}=") for name in names_in(spark, sink.path) or ()):
        return COLUMN not in sink.partition_by
    check_layout(spark, sink.model_copy(update={"mode": "append"}))
    return False


@dataclass(frozen=True)
class _Search:
    """Looks for the failed rows of a table.

    Attributes:
        table: the earlier output.
        codes: of the failed rows; all where there is none.
        in_snapshots: whether `snapshot` is its partition column.
    """

    spark: SparkSession
    table: DataFrame
    codes: tuple[str, ...]
    in_snapshots: bool

    @property
    def failed(self) -> Column:
        """Condition on a row of the table: never null."""
        return F.expr(self._failed("error_code"))

    def _failed(self, code: str) -> str:
        listed = ", ".join(f"'{ErrorCode(name)}'" for name in self.codes)
        return f"{code} IS NOT NULL" + (f" AND {code} IN ({listed})" if listed else "")

    def files(self, source: SourceSpec) -> Retry:
        """Failed rows whose files are there."""
        path = self._path("path" if source.kind == "images" else short_name(source.path_column))
        keys = (path, *(name for name in _keys(self.table) if name != path))
        rows = self.table.where(self.failed).select(*map(column, keys))
        paths = to_arrow(rows.select(column(path)))[0]
        distinct = pc.unique(paths.drop_null())
        found = look_up(self.spark, distinct.to_pylist())
        check_names(self.spark, found["path"], f"source.{source.kind}")
        there = pc.is_null(found["problem"]).combine_chunks()
        again, files = distinct.filter(there), found.filter(there)
        count = int(pc.sum(pc.is_in(paths, value_set=again)).as_py() or 0)
        if not count:
            return self._retry(None, self.table, 0, 0, len(paths), ())
        named = self._named(again)
        is_again = column(path) == F.col(_AGAIN)
        rows = rows.join(named, is_again, "left_semi")
        input_ = FoundFiles(source, keys, files, pa.table({RAW: again, READ: files["path"]}), rows=rows)
        kept = self.table.join(named, is_again & self.failed, "left_anti")
        snapshots = to_arrow(rows.select(COLUMN).distinct())[0].to_pylist() if self.in_snapshots else ()
        replaced = Replaced(path, named, self._failed("old.error_code"))
        retry = self._retry(input_.to_input(self.spark), kept, count, count, len(paths) - count, snapshots, replaced)
        return replace(retry, units=input_.units)

    def rows(self, source: SourceSpec) -> Retry:
        """Failed rows that the input still has, with all others of the same name."""
        given = read_rows(self.spark, source.model_copy(update={"limit": None}))
        extra = (COLUMN,) if self.in_snapshots else ()
        if set(_keys(self.table)) != {*given.keys, *extra}:
            raise SinkError(
                f"the earlier output has other columns of the input ({', '.join(_keys(self.table))})",
                key="source.keep",
                allowed=given.keys,
                hint="retry with the job file that wrote it",
            )
        assert given.frame is not None
        path = given.keys[0]
        bad = self._named(to_arrow(self.table.where(self.failed).select(column(path)).distinct())[0])
        found = self._compared(given.frame, path, bad)
        same = pc.and_kleene(pc.equal(found["rows"], found["now"]), pc.equal(found["places"], 1))
        same = pc.fill_null(same, False)
        again, failed = found.filter(same), int(pc.sum(found["failed"]).as_py() or 0)
        retried = int(pc.sum(again["failed"]).as_py() or 0)
        stay = failed - retried
        if not again.num_rows:
            return self._retry(None, self.table, 0, 0, stay, ())
        named = self._named(again[_AGAIN], again["place"] if self.in_snapshots else None)
        is_again = column(path).eqNullSafe(F.col(_AGAIN))
        keys = (*given.keys, *extra)
        frame = _pushed(given.frame, path, again[_AGAIN]).join(named, is_again)
        frame = frame.select(*map(column, (*keys, given.content_column)))
        kept = self.table.join(named.select(_AGAIN), is_again, "left_anti")
        snapshots = pc.unique(again["place"]).to_pylist() if self.in_snapshots else ()
        input_ = replace(given, keys=keys, content_keys=keys, frame=frame)
        replaced = Replaced(path, named.select(_AGAIN))
        rows = int(pc.sum(again["rows"]).as_py())
        return self._retry(input_, kept, rows, retried, stay, snapshots, replaced)

    def _compared(self, frame: DataFrame, path: str, bad: DataFrame) -> pa.Table:
        """Of every name with a failed row: rows and failed rows in the table and in how many places; rows in the input.

        Only the column of names is read of the input.
        """
        place = F.col(COLUMN) if self.in_snapshots else F.lit("")
        is_bad = column(path).eqNullSafe(F.col(_AGAIN))
        counts = (
            F.count(F.lit(1)).alias("rows"),
            F.sum(self.failed.cast("int")).alias("failed"),
            F.count_distinct(place).alias("places"),
            F.min(place).alias("place"),
        )
        then = self.table.join(bad, is_bad).groupBy(_AGAIN).agg(*counts)
        names = frame.select(column(path)).join(bad, is_bad).groupBy(F.col(_AGAIN).alias("name"))
        now = names.agg(F.count(F.lit(1)).alias("now"))
        return to_arrow(then.join(now, F.col(_AGAIN).eqNullSafe(F.col("name")), "left").drop("name"))

    def _named(self, names: pa.ChunkedArray, places: pa.ChunkedArray | None = None) -> DataFrame:
        """Names of rows, and their snapshots, where the executors can join them."""
        columns = {_AGAIN: names} if places is None else {_AGAIN: names, COLUMN: places}
        named = local_frame(self.spark, pa.table(columns))
        return F.broadcast(named) if len(names) <= _BROADCAST_ROWS else named

    def _path(self, name: str) -> str:
        if name not in _keys(self.table):
            raise SinkError(
                f"the earlier output has no column {name!r}", key="source.path_column", allowed=_keys(self.table)
            )
        return name

    def _retry(
        self,
        source: Input | None,
        kept: DataFrame,
        rows: int,
        failed: int,
        stay: int,
        snapshots: Sequence[str],
        replaced: Replaced | None = None,
    ) -> Retry:
        path = source.keys[0] if source else _keys(self.table)[0]
        sample = F.min(column(path).cast("string")).alias("sample")
        counted = kept.groupBy("error_code").agg(F.count(F.lit(1)).alias("rows"), sample).collect()
        errors = {row["error_code"]: row["rows"] for row in counted if row["error_code"]}
        samples = {row["error_code"]: row["sample"] for row in counted if row["error_code"]}
        tally = Tally(sum(row["rows"] for row in counted), errors, samples)
        return Retry(source, kept, rows, failed, stay, tally, tuple(sorted(snapshots, key=int)), replaced)


def _pushed(frame: DataFrame, path: str, names: pa.ChunkedArray) -> DataFrame:
    """Rows with few enough names as a condition that Parquet can act on: the join would read all image bytes."""
    if len(names) > _PUSHED_ROWS:
        return frame
    wanted = column(path).isin(names.drop_null().to_pylist())
    return frame.where(wanted | column(path).isNull() if names.null_count else wanted)


def write_retried(spark: SparkSession, retry: Retry, table: DataFrame, sink: SinkSpec, run_id: str) -> None:
    """Runs the rows again and puts them into their places.

    Args:
        spark: the session.
        retry: from `find_failed`, with a source.
        table: the prediction table of `retry.source`; lazy, computed once.
        sink: the job's.
        run_id: of this run.

    Raises:
        SinkError: it cannot be written.
    """
    if sink.format in TRANSACTIONAL:
        assert retry.replaced is not None
        merge(table, sink, retry.replaced)
        return
    whole = sink.model_copy(update={"mode": "overwrite"})
    if not retry.snapshots:
        write(_joined(retry.kept, table), whole, run_id)
        return
    path, fs = hadoop_path(spark, sink.target)
    # Of a name that `SnapshotSink.recover` clears away when this run dies.
    aside = child(spark, path, f".{COLUMN}=retried.{run_id}.new")
    try:
        table.write.parquet(aside.toString())
        retried = spark.read.schema(table.schema).parquet(literal(aside.toString()))
        for snapshot in retry.snapshots:
            is_of = F.col(COLUMN) == snapshot
            folder = whole.model_copy(update={"path": f"{sink.target.rstrip('/')}/{COLUMN}={snapshot}"})
            write(_joined(retry.kept.where(is_of), retried.where(is_of)).drop(COLUMN), folder, run_id)
    finally:
        fs.delete(aside, True)


def _joined(kept: DataFrame, retried: DataFrame) -> DataFrame:
    """Both, with the columns of `retried`: partition values are text in what is kept."""
    typed = (column(field.name).cast(field.dataType).alias(field.name) for field in retried.schema)
    return kept.select(*typed).union(retried)
