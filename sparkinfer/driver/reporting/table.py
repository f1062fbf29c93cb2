"""What the report says of the prediction table: one Spark job over the rows of one run. Driver side.

The job reads a handful of columns and brings back a few hundred rows, however long the table is: each part is a count
by group, or the first rows in some order, of which every task keeps no more than are wanted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from sparkinfer.core.schema import PREDICTION_COLUMNS, ddl
from sparkinfer.core.spec import JobSpec
from sparkinfer.driver.frames import column, to_arrow
from sparkinfer.driver.names import quoted, table_name
from sparkinfer.driver.paths import literal
from sparkinfer.driver.sources.selection import short_name
from sparkinfer.driver.sql_errors import quiet

__all__ = ["CONFIDENCE_BINS", "FailedRow", "LabelCount", "Prediction", "TableFigures", "figures_of", "rows_of_run"]

CONFIDENCE_BINS = 100
"""Of equal width in [0, 1]: the last one holds 1 too."""

LABELS = 30
"""The most frequent ones."""

SAMPLE = 24
"""Predictions by chance: by a hash of the path, so the same rows whenever one asks."""

LEAST_CONFIDENT = 12

FAILED_GROUPS = 6
"""Of each error code, by a hash of the path; each group shows one row."""


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
        DataFrame(path string, class_idx int, label string, confidence double, code, stage, message string).
    """
    sink = spec.sink
    key = "path" if spec.source.kind == "images" else short_name(spec.source.path_column)
    with quiet():
        table = spark.table(table_name(sink.target, "sink.table")) if sink.table else _folder(spark, spec, key)
    return table.where(F.col("run_id") == run_id).select(
        column(key).cast("string").alias("path"),
        F.col("predicted_class_idx").cast("int").alias("class_idx"),
        F.col("label").cast("string").alias("label"),
        F.col("confidence").cast("double").alias("confidence"),
        F.col("error_code").cast("string").alias("code"),
        F.col("error_stage").cast("string").alias("stage"),
        F.col("error_message").cast("string").alias("message"),
    )


def _folder(spark: SparkSession, spec: JobSpec, key: str) -> DataFrame:
    """The table with the types that are known, so that Spark need not look for them in a job of its own."""
    sink = spec.sink
    reader = spark.read.format(sink.format)
    key_is_text = spec.source.kind in {"images", "paths"}
    if sink.format == "json" or (key_is_text and sink.format in {"parquet", "orc"}):
        reader = reader.schema(f"{quoted(key)} string, {ddl(PREDICTION_COLUMNS)}")
    return reader.load(literal(sink.target))


def figures_of(spark: SparkSession, rows: DataFrame) -> TableFigures:
    """Counts and samples, by one Spark job.

    Args:
        spark: the session.
        rows: from `rows_of_run`.
    """
    found = to_arrow(spark.sql(_QUERY, rows=rows)).to_pylist()
    parts: dict[str, list[dict[str, Any]]] = {}
    for row in found:
        parts.setdefault(row.pop("part"), []).append(row)
    bins = {row["class_idx"]: row["rows"] for row in parts.get("confidence", [])}
    labels = sorted(parts.get("label", []), key=lambda row: (-row["rows"], row["class_idx"] or 0))
    errors: dict[str, int] = {}
    for row in parts.get("failed", []):
        errors[row["code"]] = errors.get(row["code"], 0) + row["rows"]
    least = sorted(parts.get("least", []), key=lambda row: (row["confidence"], row["path"] or ""))
    return TableFigures(
        rows=sum(bins.values()) + sum(errors.values()),
        errors=dict(sorted(errors.items(), key=lambda item: (-item[1], item[0]))),
        confidence=tuple(bins.get(number, 0) for number in range(CONFIDENCE_BINS)),
        outside=sum(count for number, count in bins.items() if number not in range(CONFIDENCE_BINS)),
        labels=tuple(LabelCount(row["class_idx"], row["label"], row["rows"]) for row in labels[:LABELS]),
        more_labels=len(labels) > LABELS,
        sample=_predictions(parts.get("sample", [])),
        least=_predictions(least),
        failed=tuple(
            FailedRow(row["path"], row["code"], row["stage"], row["message"])
            for row in sorted(parts.get("failed", []), key=lambda row: (row["code"], row["path"] or ""))
        ),
    )


def _predictions(rows: Sequence[dict[str, Any]]) -> tuple[Prediction, ...]:
    return tuple(Prediction(row["path"], row["class_idx"], row["label"], row["confidence"]) for row in rows)


_GOOD = "FROM {rows} WHERE code IS NULL"
_NO_FAILURE = "CAST(NULL AS string) AS code, CAST(NULL AS string) AS stage, CAST(NULL AS string) AS message"
_ONE = f"path, class_idx, label, confidence, {_NO_FAILURE}, CAST(1 AS bigint) AS rows"

# All parts have the same columns; `confidence` has the number of its bin in `class_idx`.
_QUERY = f"""
SELECT 'confidence' AS part, CAST(NULL AS string) AS path, bin AS class_idx, CAST(NULL AS string) AS label,
       CAST(NULL AS double) AS confidence, {_NO_FAILURE}, count(1) AS rows
FROM (
  SELECT CASE WHEN confidence < 0 THEN -1 WHEN confidence > 1 OR confidence IS NULL THEN {CONFIDENCE_BINS}
         ELSE least({CONFIDENCE_BINS - 1}, CAST(floor(confidence * {CONFIDENCE_BINS}) AS int)) END AS bin
  {_GOOD}
) GROUP BY bin
UNION ALL (
  SELECT 'label', CAST(NULL AS string), class_idx, label, CAST(NULL AS double), {_NO_FAILURE}, count(1) AS rows
  {_GOOD} GROUP BY class_idx, label ORDER BY rows DESC, class_idx LIMIT {LABELS + 1}
)
UNION ALL (
  SELECT 'failed', first.path, CAST(NULL AS int), CAST(NULL AS string), CAST(NULL AS double),
         code, first.stage, first.message, rows
  FROM (
    SELECT code, min(struct(path, stage, message)) AS first, count(1) AS rows
    FROM {{rows}} WHERE code IS NOT NULL GROUP BY code, pmod(xxhash64(path), {FAILED_GROUPS})
  )
)
UNION ALL (SELECT 'sample', {_ONE} {_GOOD} ORDER BY xxhash64(path), path LIMIT {SAMPLE})
UNION ALL (SELECT 'least', {_ONE} {_GOOD} ORDER BY confidence, path LIMIT {LEAST_CONFIDENT})
"""  # noqa: S608 - of constants
