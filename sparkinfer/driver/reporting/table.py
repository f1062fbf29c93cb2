"""What the report says of the prediction table: counts and samples of the rows of one run. Driver side.

A few columns of a short table come to the driver and are added up there (`executor.table_summary`): a third of the time
that Spark takes to plan it. Of a long one every task adds up its part and sends a summary.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkinfer.core.schema import PREDICTION_COLUMNS, ddl
from sparkinfer.core.spec import JobSpec
from sparkinfer.driver.frames import column, settings, to_arrow
from sparkinfer.driver.names import quoted, table_name
from sparkinfer.driver.paths import literal
from sparkinfer.driver.sources.selection import short_name
from sparkinfer.driver.sql_errors import quiet
from sparkinfer.executor.table_summary import CONFIDENCE_BINS, SUMMARY, TableSummary, summarised

__all__ = ["FailedRow", "LabelCount", "Prediction", "TableFigures", "figures_of", "rows_of_run"]

LABELS = 30
"""The most frequent ones."""

COLLECTED_ROWS = 50_000
"""So many rows at most are added up on the driver: some 10 MB of names, labels and confidences."""

_LARGE_BATCHES = {
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    "spark.sql.parquet.columnarReaderBatchSize": "4096",
    "spark.sql.orc.columnarReaderBatchSize": "4096",
}
"""Spark's defaults: those of the job are for rows with images."""


@dataclass(frozen=True)
class Prediction:
    """One good row."""

    path: str | None
    class_idx: int | None
    label: str | None
    confidence: float | None


@dataclass(frozen=True)
class FailedRow:
    """One failed row."""

    path: str | None
    code: str
    stage: str | None
    message: str | None


@dataclass(frozen=True)
class LabelCount:
    """A class and the number of rows it was predicted for."""

    class_idx: int | None
    label: str | None
    rows: int


@dataclass(frozen=True)
class TableFigures:
    """What is in the rows of one run.

    Attributes:
        rows: good and failed.
        errors: failed rows by code.
        confidence: good rows in each of `CONFIDENCE_BINS`.
        outside: good rows whose confidence is not in [0, 1]: raw scores of a model without activation.
        labels: the most frequent classes, the first the most frequent.
        more_labels: whether there are others.
        sample: good rows by chance.
        least: the least confident good rows, the least first.
        failed: some failed rows of each code.
    """

    rows: int
    errors: dict[str, int]
    confidence: tuple[int, ...]
    outside: int
    labels: tuple[LabelCount, ...]
    more_labels: bool
    sample: tuple[Prediction, ...]
    least: tuple[Prediction, ...]
    failed: tuple[FailedRow, ...]

    def confidence_quantile(self, share: float) -> float | None:
        """The confidence below which this share of the good rows lies, exact to the bin; None without any."""
        count, before = sum(self.confidence), 0
        for number, inside in enumerate(self.confidence):
            if inside and before + inside >= share * count:
                return (number + max(0.0, share * count - before) / inside) / CONFIDENCE_BINS
            before += inside
        return None


def rows_of_run(spark: SparkSession, spec: JobSpec, run_id: str) -> DataFrame:
    """The rows of the prediction table that a run has written; lazy.

    Returns:
        DataFrame(path string, class_idx int, label string, confidence double, code, stage, message string,
        mark bigint): `mark` is a hash of the path.
    """
    sink = spec.sink
    key = "path" if spec.source.kind == "images" else short_name(spec.source.path_column)
    with quiet():
        table = spark.table(table_name(sink.target, "sink.table")) if sink.table else _folder(spark, spec, key)
    path = column(key).cast("string")
    return table.where(F.col("run_id") == run_id).select(
        path.alias("path"),
        F.col("predicted_class_idx").cast("int").alias("class_idx"),
        F.col("label").cast("string").alias("label"),
        F.col("confidence").cast("double").alias("confidence"),
        F.col("error_code").cast("string").alias("code"),
        F.col("error_stage").cast("string").alias("stage"),
        F.col("error_message").cast("string").alias("message"),
        F.xxhash64(path).alias("mark"),
    )


def _folder(spark: SparkSession, spec: JobSpec, key: str) -> DataFrame:
    """The table with the types that are known, so that Spark need not look for them in a job of its own."""
    sink = spec.sink
    reader = spark.read.format(sink.format)
    key_is_text = spec.source.kind in {"images", "paths"}
    if sink.format == "json" or (key_is_text and sink.format in {"parquet", "orc"}):
        reader = reader.schema(f"{quoted(key)} string, {ddl(PREDICTION_COLUMNS)}")
    return reader.load(literal(sink.target))


def figures_of(rows: DataFrame, count: int | None) -> TableFigures:
    """Counts and samples, by one Spark job.

    Args:
        rows: from `rows_of_run`.
        count: of them, as far as is known.
    """
    summary = TableSummary()
    if count is not None and count <= COLLECTED_ROWS:
        summary.add(to_arrow(rows))
    else:
        with settings(rows.sparkSession, _LARGE_BATCHES):
            parts = to_arrow(rows.mapInArrow(summarised, f"{SUMMARY} binary"))[SUMMARY].to_pylist()
        for part in parts:
            summary.merge(pickle.loads(part))  # noqa: S301 - made by a task of ours
    return _figures(summary)


def _figures(summary: TableSummary) -> TableFigures:
    labels = sorted(summary.labels.items(), key=lambda item: (-item[1], item[0][0] or 0, item[0][1] or ""))
    errors: dict[str, int] = {}
    for (code, _), (count, _) in summary.failed.items():
        errors[code] = errors.get(code, 0) + count
    failed = [FailedRow(code=code, **row) for (code, _), (_, row) in summary.failed.items()]
    return TableFigures(
        rows=sum(summary.confidence) + summary.outside + sum(errors.values()),
        errors=dict(sorted(errors.items(), key=lambda item: (-item[1], item[0]))),
        confidence=tuple(summary.confidence),
        outside=summary.outside,
        labels=tuple(LabelCount(*label, count) for label, count in labels[:LABELS]),
        more_labels=len(labels) > LABELS,
        sample=_predictions(summary.sample),
        least=_predictions(summary.least),
        failed=tuple(sorted(failed, key=lambda row: (row.code, row.path or ""))),
    )


def _predictions(rows: pa.Table | None) -> tuple[Prediction, ...]:
    listed = [] if rows is None else rows.drop_columns("mark").to_pylist()
    return tuple(Prediction(**row) for row in listed)
