"""One chain, three ways for Spark to call it. Executor side: these functions are pickled by reference.

All of them go through `run_task`, so their predictions are the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparkinfer.executor import taskcontext
from sparkinfer.executor.meter import Meter
from sparkinfer.executor.plan import TaskPlan
from sparkinfer.executor.postprocess import effective_classes
from sparkinfer.executor.report import counted
from sparkinfer.executor.task import run_task
from sparkinfer.executor.telemetry import metered

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["make_predict_fn", "run_arrow", "run_pandas", "run_series"]


def run_arrow(plan: TaskPlan, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For `DataFrame.mapInArrow`."""
    with _metered(plan, "arrow") as meter:
        results = run_task(batches, _alone(plan), meter)
        path = plan.keys[0] if plan.keys else None
        yield from meter.writing(counted(results, plan.counts, path))


def run_pandas(plan: TaskPlan, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """For `DataFrame.mapInPandas`. The key columns stay in pandas as they came."""
    import pandas as pd

    waiting: deque[pd.DataFrame] = deque()

    def batches() -> Iterator[pa.RecordBatch]:
        for frame in frames:
            if len(frame):
                waiting.append(frame[list(plan.keys)])
                yield _content_batch(frame[plan.content], plan.content)

    with _metered(plan, "pandas") as meter:
        results = run_task(batches(), _alone(plan, keys=()), meter)
        for result in meter.writing(counted(results, plan.counts)):
            keys = waiting.popleft()
            if len(keys) > result.num_rows:
                waiting.appendleft(keys.iloc[result.num_rows :])
                keys = keys.iloc[: result.num_rows]
            values = result.to_pandas(integer_object_nulls=True)
            yield pd.concat([keys.reset_index(drop=True), values], axis=1)


def make_predict_fn(plan: TaskPlan) -> Callable[[Any], dict[str, Any]]:
    """For `pyspark.ml.functions.predict_batch_udf`: called once per Python worker, gives the batch function.

    The batch function takes a numpy object array [rows] of bytes or None. `predict_batch_udf` accepts one-dimensional
    columns and dense two-dimensional ones only, so it gives `top_k` as three arrays [rows, k] and `embedding` as
    [rows, width], filled with zeros where the row failed; `driver.predict` puts the table's columns together.
    """
    import numpy as np

    alone = _alone(plan, keys=())
    k = min(plan.postprocess.top_k, effective_classes(plan.num_classes, plan.postprocess.activation))

    def predict(content: Any) -> dict[str, Any]:
        with _metered(plan, "predict_batch_udf", ends=False) as meter:
            results = run_task([_content_batch(content, alone.content)], alone, meter)
            table = pa.Table.from_batches(counted(results, plan.counts))
        rows = table.to_pylist()
        top = [row["top_k"] or [{"class_idx": 0, "label": None, "confidence": 0.0}] * k for row in rows]
        width = max((len(row["embedding"] or ()) for row in rows), default=0)
        embedding = np.array([row["embedding"] or [0.0] * width for row in rows], np.float32)
        flat: dict[str, Any] = {
            name: np.array(table.column(name).to_pylist(), object)
            for name in table.column_names
            if name not in ("top_k", "embedding")
        }
        nested: dict[str, Any] = {
            "top_k_class_idx": np.array([[item["class_idx"] for item in row] for row in top], np.int32),
            "top_k_label": np.array([[item["label"] for item in row] for row in top], object),
            "top_k_confidence": np.array([[item["confidence"] for item in row] for row in top], np.float32),
            "embedding": embedding.reshape(len(rows), width),
        }
        return flat | nested

    return predict


def run_series(plan: TaskPlan, contents: Iterator[pd.Series[Any]]) -> Iterator[pd.DataFrame]:
    """For an iterator `pandas_udf`: one frame of `RESULT_COLUMNS` for each series of image bytes."""
    alone = replace(plan, keys=())
    for content in contents:
        results = list(run_task([_content_batch(content, alone.content)], alone))
        yield pa.Table.from_batches(results).to_pandas(integer_object_nulls=True)


def _alone(plan: TaskPlan, **changes: Any) -> TaskPlan:
    """The plan for the chain, which tells the driver nothing itself."""
    return replace(plan, counts=None, telemetry=None, **changes)


def _metered(plan: TaskPlan, engine: str, *, ends: bool = True) -> AbstractContextManager[Meter]:
    return metered(plan.telemetry, engine, plan.cores or taskcontext.cpus(), ends=ends)


def _content_batch(values: Any, name: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, pa.binary(), from_pandas=True)], names=[name])
