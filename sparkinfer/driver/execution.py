"""One pass of the model over one input, into one place. Driver side."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from sparkinfer.core.errors import ErrorCode
from sparkinfer.core.spec import JobSpec
from sparkinfer.driver.budget import Budget
from sparkinfer.driver.inputs import Input, finish
from sparkinfer.driver.live import LiveRun
from sparkinfer.driver.model import Model
from sparkinfer.driver.names import quoted
from sparkinfer.driver.predict import results, stamps
from sparkinfer.driver.session import own_arrow_limits
from sparkinfer.driver.shard import Sharding
from sparkinfer.executor.report import Tally

__all__ = ["count_table", "measures", "predict_into"]


def predict_into(
    write: Callable[[DataFrame], None],
    spark: SparkSession,
    spec: JobSpec,
    model: Model,
    source: Input,
    sharding: Sharding,
    run_id: str,
    live: LiveRun,
    *,
    rows: int | None,
    tasks: int | None = None,
    before: Tally | None = None,
) -> Tally:
    """Predicts every row of an input and has them written.

    Args:
        write: runs the query that it is given, once, and makes its rows visible.
        spark: the session.
        spec: the job.
        model: its model.
        source: the rows.
        sharding: of `source`.
        run_id: this run's.
        live: told how it goes.
        rows: of the whole run, where their number is known.
        tasks: of the whole run, where their number is known.
        before: what earlier passes of this run have committed.

    Returns:
        Exact counts of what was written.

    Raises:
        BudgetExceededError: stopped early: so many rows fail that the rest cannot help.
        SinkError: it cannot be written.
    """
    own_arrow_limits(spark, spec.batch.max_bytes, source.mean_bytes)
    watching = Budget(spec.errors).watching(spark, spec.sink.target, rows=rows, tasks=tasks, before=before)
    with watching as budget, live.watching(budget, rows=rows, known=source.known, before=before) as live_pass:
        plan = model.plan(
            spark,
            content=source.content_column,
            keys=source.content_keys,
            max_image_bytes=spec.source.max_bytes,
            row_timeout=spec.errors.row_timeout_seconds,
            counts=live_pass.counts,
            telemetry=live_pass.target,
        )
        predictions = results(sharding.content, plan, spec.engine)
        table = finish(source, predictions, stamps(model.inspected, run_id))
        observation = Observation(f"sparkinfer-{run_id}")
        with sharding.applied(spark):
            write(table.observe(observation, *measures(source.keys[0])))
        exact = _tally(observation.get)
        live_pass.settle(exact)
        return exact


def count_table(table: DataFrame) -> Tally:
    """Exact counts of a prediction table that is written; its first column names a row."""
    return _tally(table.agg(*measures(table.columns[0])).collect()[0].asDict())


def measures(path_column: str) -> list[Column]:
    """Exact counts of a prediction table, and one path for each error code.

    Spark sums them over the tasks whose output counts, so retries and speculation do not count twice. As SQL text: a
    call of the JVM for every function of every measure would take a tenth of a second.
    """
    path = quoted(path_column)
    texts = ["count(1) AS rows"]
    for code in ErrorCode:
        texts.append(f"count_if(error_code = '{code}') AS n_{code}")
        texts.append(f"min(IF(error_code = '{code}', CAST({path} AS string), NULL)) AS path_{code}")
    return [F.expr(text) for text in texts]


def _tally(seen: dict[str, Any]) -> Tally:
    codes = [str(code) for code in ErrorCode if seen[f"n_{code}"]]
    return Tally(seen["rows"], {c: seen[f"n_{c}"] for c in codes}, {c: seen[f"path_{c}"] for c in codes})
