"""Images to predictions, lazily: `predict` and `predict_udf`. Driver side; the functions it names run on executors."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.ml.functions import predict_batch_udf
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StructType

from sparkinfer.core.errors import SourceError, SpecError
from sparkinfer.core.schema import RESULT_COLUMNS, ddl
from sparkinfer.driver.frames import column as exact
from sparkinfer.driver.frames import struct
from sparkinfer.driver.model import Inspected, Model
from sparkinfer.driver.session import own_arrow_limits
from sparkinfer.driver.sources.selection import check_keys
from sparkinfer.driver.spark.gpu_stage import stage_options
from sparkinfer.executor import engines
from sparkinfer.executor.plan import TaskPlan

__all__ = ["ENGINES", "new_run_id", "predict", "predict_udf", "results", "stamped"]

_BATCH_UDF_DDL = """
    predicted_class_idx int, label string, confidence float, error_stage string, error_code string,
    error_message string, top_k_class_idx array<int>, top_k_label array<string>, top_k_confidence array<float>,
    embedding array<float>
"""

_RAW = "_sparkinfer_raw"

_UDF_BATCH_ROWS = 64
"""Rows that `predict_batch_udf` hands over at once; the chain cuts them into model batches."""


def predict(
    images: DataFrame,
    model: Model,
    *,
    path_column: str = "path",
    content_column: str = "content",
    keep: Sequence[str] = (),
    engine: str = "arrow",
) -> DataFrame:
    """The prediction table of a DataFrame of images, static or streaming. Lazy.

    Args:
        images: with a binary column of compressed images and a column that names each row.
        model: from `sparkinfer.model`.
        path_column: names a row; carried to the output.
        content_column: compressed image bytes.
        keep: more columns to carry to the output.
        engine: arrow, pandas or predict_batch_udf: the same predictions.

    Returns:
        DataFrame with `path_column`, `keep` and `core.schema.PREDICTION_COLUMNS`: one row per input row.

    Raises:
        ModelError, SpecError: the model is missing or does not fit its description.
        SourceError: a column is missing.
    """
    keys = (path_column, *([keep] if isinstance(keep, str) else keep))
    missing = [name for name in (*keys, content_column) if name not in images.columns]
    if missing:
        raise SourceError(
            f"no column {', '.join(map(repr, missing))}",
            allowed=images.columns,
            hint="name columns with path_column=, content_column=, keep=",
        )
    check_keys(keys)
    content_type = images.schema[content_column].dataType
    if not isinstance(content_type, BinaryType):
        raise SourceError(
            f"{content_column!r} is {content_type.simpleString()}, not binary",
            hint="image bytes are a binary column; unbase64() makes bytes of text",
        )
    plan = model.plan(images.sparkSession, content=content_column, keys=keys)
    own_arrow_limits(images.sparkSession, model.batch.max_bytes, None)
    return stamped(results(images, plan, engine), model.inspected, new_run_id())


def predict_udf(model: Model) -> Callable[[Column | str], Column]:
    """The same model as a column function, built on `pyspark.ml.functions.predict_batch_udf`.

    Returns:
        A function from a binary column to a struct column with `core.schema.RESULT_COLUMNS`.

    Example:
        `images.select("path", si.predict_udf(model)("content").alias("p")).select("path", "p.*")`
    """
    udf = _batch_udf(model.plan(_active_session(), content="content", keys=()))

    def column(content: Column | str) -> Column:
        return F.struct(*_results_of(udf(content)))

    return column


def results(images: DataFrame, plan: TaskPlan, engine: str) -> DataFrame:
    """`plan.keys` and `RESULT_COLUMNS` for every row of `images`, by one of the engines. Lazy."""
    if engine not in ENGINES:
        raise SpecError(f"unknown engine {engine!r}", key="engine", allowed=ENGINES)
    names = (*plan.keys, plan.content)
    images = images.select(*map(exact, names))
    if not any(mark in name for name in names for mark in ".`"):
        return ENGINES[engine](images, plan)
    # pyspark's `mapInArrow` and its kin take a dot or a backtick in a column's name for syntax.
    plain = replace(plan, keys=tuple(f"key{i}" for i in range(len(plan.keys))), content="content")
    found = ENGINES[engine](images.toDF(*plain.keys, plain.content), plain)
    return found.withColumnsRenamed(dict(zip(plain.keys, plan.keys, strict=True)))


def stamped(table: DataFrame, found: Inspected, run_id: str) -> DataFrame:
    """`table` with `STAMP_COLUMNS` appended."""
    return table.select(
        "*", *(F.lit(value).cast("string").alias(name) for name, value in stamps(found, run_id).items())
    )


def stamps(found: Inspected, run_id: str) -> dict[str, str | None]:
    """Values of `STAMP_COLUMNS`."""
    return {
        "model_name": found.spec.display_name,
        "model_version": found.spec.version,
        "model_digest": found.digest,
        "run_id": run_id,
    }


def new_run_id() -> str:
    """A new run's id."""
    return uuid.uuid4().hex


def _result_schema(images: DataFrame, plan: TaskPlan) -> StructType:
    fields = [images.schema[key] for key in plan.keys]
    return StructType([*fields, *struct(ddl(RESULT_COLUMNS)).fields])


def _arrow(images: DataFrame, plan: TaskPlan) -> DataFrame:
    options = stage_options(images.sparkSession)
    return images.mapInArrow(partial(engines.run_arrow, plan), _result_schema(images, plan), **options)


def _pandas(images: DataFrame, plan: TaskPlan) -> DataFrame:
    options = stage_options(images.sparkSession)
    return images.mapInPandas(partial(engines.run_pandas, plan), _result_schema(images, plan), **options)


def _predict_batch_udf(images: DataFrame, plan: TaskPlan) -> DataFrame:
    keys = [exact(key) for key in plan.keys]
    # Not deterministic for the optimizer, which would else run the model again for a filter on its result.
    raw = _batch_udf(plan).asNondeterministic()(exact(plan.content))
    return images.select(*keys, raw.alias(_RAW)).select(*keys, *_results_of(F.col(_RAW)))


def _batch_udf(plan: TaskPlan) -> Any:
    size = plan.batch.size if plan.batch.size != "auto" else _UDF_BATCH_ROWS
    make: Any = partial(engines.make_predict_fn, plan)
    return predict_batch_udf(make, return_type=struct(_BATCH_UDF_DDL), batch_size=size)


def _results_of(raw: Column) -> list[Column]:
    """`RESULT_COLUMNS` out of the struct that `engines.make_predict_fn` gives."""
    succeeded = raw["error_code"].isNull()
    items = F.arrays_zip(
        raw["top_k_class_idx"].alias("class_idx"),
        raw["top_k_label"].alias("label"),
        raw["top_k_confidence"].alias("confidence"),
    )
    nested = {
        "top_k": F.when(succeeded, items),
        "embedding": F.when(succeeded & (F.size(raw["embedding"]) > 0), raw["embedding"]),
    }
    return [nested.get(c.name, raw[c.name]).cast(c.ddl).alias(c.name) for c in RESULT_COLUMNS]


ENGINES: dict[str, Callable[[DataFrame, TaskPlan], DataFrame]] = {
    "arrow": _arrow,
    "pandas": _pandas,
    "predict_batch_udf": _predict_batch_udf,
}


def _active_session() -> Any:
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is None:
        raise SpecError("there is no active SparkSession", hint="create one first: SparkSession.builder.getOrCreate()")
    return session
