"""A run, and one pass of its model over one input, into one place. Driver side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from sparkinfer.core.errors import ErrorCode
from sparkinfer.core.spec import JobSpec
from sparkinfer.driver.budget import Budget
from sparkinfer.driver.model import Model
from sparkinfer.driver.names import quoted
from sparkinfer.driver.phases import Phases
from sparkinfer.driver.predict import results, stamps
from sparkinfer.driver.session import own_arrow_limits
from sparkinfer.driver.shard import Sharding, shard
from sparkinfer.driver.sources.inputs import Input, finish
from sparkinfer.driver.watching.live import LiveRun
from sparkinfer.executor.report import Tally

__all__ = ["Run", "count_table", "cut", "measures", "predict_into"]


@dataclass(frozen=True)
class Run:
    """One run of a job, and who is told how it goes.

    Attributes:
        spark: the session.
        spec: the job.
        model: its model.
        run_id: this run's.
        live: told of rows and tasks.
        phases: names what is done.
    """

    spark: SparkSession
    spec: JobSpec
    model: Model
    run_id: str
    live: LiveRun
    phases: Phases


def cut(run: Run, source: Input, detail: str = "") -> Sharding:
    """The tasks of an input.

    Args:
        run: whose.
        source: the rows.
        detail: more to tell of this time: `snapshot 7`.

    Raises:
        EmptySourceError: no row is chosen.
    """
    with run.phases.phase("sharding", detail):
        return shard(run.spark, source, run.spec.sharding, run.spark.sparkContext.defaultParallelism)


def predict_into(
    write: Callable[[DataFrame], None],
    run: Run,
    source: Input,
    sharding: Sharding,
    detail: str = "",
    *,
    rows: int | None,
    tasks: int | None = None,
    before: Tally | None = None,
) -> Tally:
    """Predicts every row of an input and has them written.

    Args:
        write: runs the query that it is given, once, and makes its rows visible.
        run: whose.
        source: the rows.
        sharding: of `source`.
        detail: more to tell of this time: `snapshot 7`.
        rows: of the whole run, where their number is known.
        tasks: of the whole run, where their number is known.
        before: what earlier passes of this run have committed.

    Returns:
        Exact counts of what was written.

    Raises:
        BudgetExceededError: stopped early: so many rows fail that the rest cannot help.
        SinkError: it cannot be written.
    """
    spark, spec = run.spark, run.spec
    own_arrow_limits(spark, spec.batch.max_bytes, source.mean_bytes)
    watching = Budget(spec.errors).watching(spark, spec.sink.target, rows=rows, tasks=tasks, before=before)
    with (
        run.phases.phase("predict and write", detail),
        watching as budget,
        run.live.watching(budget, rows=rows, known=source.known, before=before) as live_pass,
    ):
        plan = run.model.plan(
            spark,
            content=source.content_column,
            keys=source.content_keys,
            max_image_bytes=spec.source.max_bytes,
            row_timeout=spec.errors.row_timeout_seconds,
            counts=live_pass.counts,
            telemetry=live_pass.target,
        )
        predictions = results(sharding.content, plan, spec.engine)
        table = finish(source, predictions, stamps(run.model.inspected, run.run_id))
        observation = Observation(f"sparkinfer-{run.run_id}")
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
