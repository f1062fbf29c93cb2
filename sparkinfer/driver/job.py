"""One job from spec to report. Driver side.

spec -> inspect model -> session -> read -> shard -> predict -> write -> report
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from pyspark.sql import Column, Observation, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.markup import escape

from sparkinfer.core.errors import BudgetExceededError, ErrorCode, SpecError
from sparkinfer.core.schema import PREDICTION_COLUMNS
from sparkinfer.core.spec import JobSpec
from sparkinfer.driver.inputs import size_text
from sparkinfer.driver.listing import write_text
from sparkinfer.driver.model import Model
from sparkinfer.driver.paths import local_path
from sparkinfer.driver.predict import new_run_id, results, stamps
from sparkinfer.driver.read import Input, check_local_source, finish, read_source
from sparkinfer.driver.session import get_session, is_local_master, own_arrow_limits
from sparkinfer.driver.shard import Sharding, shard
from sparkinfer.driver.sink_checks import check_apart
from sparkinfer.driver.write import check_local_target, check_target, write
from sparkinfer.executor.device import resolve_device

__all__ = ["JobResult", "run_job"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobResult:
    """What a finished job did.

    Attributes:
        rows: rows of the prediction table that this run wrote.
        errors: failed rows by code.
        samples: one path for each code in `errors`.
        output: path or table.
        seconds: from the start of `run_job` to the commit.
        left_out: files that are no rows, by reason.
    """

    run_id: str
    rows: int
    errors: dict[str, int]
    samples: dict[str, str]
    output: str
    seconds: float
    sharding: str
    partitions: int | None
    model_digest: str
    left_out: dict[str, int] = field(default_factory=dict)

    @property
    def failed(self) -> int:
        """Rows with an error code."""
        return sum(self.errors.values())


def run_job(spec: JobSpec, console: Console | None = None) -> JobResult:
    """Runs a job to its end.

    Args:
        spec: what to do.
        console: where progress is told; None tells nothing.

    Raises:
        UserError: something in the spec, the model, the input or the output that the person can mend; raised before
            Spark is started where Spark is not needed to know.
        BudgetExceededError: more rows failed than `errors.max_fraction` allows; the output stays.
    """
    tell = partial((console or Console(quiet=True)).print, soft_wrap=True, highlight=False)
    started = time.monotonic()
    _check_before_spark(spec)
    model = Model(spec.model, spec.preprocess, spec.postprocess, spec.batch)
    if _is_local(model):
        _ = model.inspected
    spark = get_session(spec)
    found = model.inspected
    tell(
        f"[bold]model[/]     {escape(found.spec.display_name)} ({found.spec.format}, {size_text(found.artifact.size)}, "
        f"{found.signature.num_classes} classes), takes {escape(str(found.signature.input))}"
    )
    check_apart(spark, spec)
    source = read_source(spark, spec.source)
    check_target(spark, spec.sink, [*source.keys, *(c.name for c in PREDICTION_COLUMNS)])
    tell(f"[bold]input[/]     {escape(source.describe())}")
    sharding = shard(spark, source, spec.sharding, spark.sparkContext.defaultParallelism)
    tell(f"[bold]sharding[/]  {escape(sharding.reason)}")
    run_id = new_run_id()
    counts = _run(spark, spec, model, source, sharding, run_id)
    result = JobResult(
        run_id=run_id,
        rows=counts.rows,
        errors=counts.errors,
        samples=counts.samples,
        output=spec.sink.target,
        seconds=round(time.monotonic() - started, 3),
        sharding=sharding.reason,
        partitions=sharding.partitions,
        model_digest=found.digest,
        left_out=source.left_out,
    )
    if spec.report:
        _report(spark, spec, result)
    tell(f"[bold]done[/]      {escape(_summary(result))}")
    _check_budget(spec, result)
    return result


def _check_before_spark(spec: JobSpec) -> None:
    """Everything that can be told without Spark, within a second."""
    check_local_target(spec.sink)
    check_apart(None, spec)
    check_local_source(spec.source)
    report = local_path(spec.report) if spec.report else None
    if report is not None and report.exists() and not report.is_dir():
        raise SpecError(
            f"{spec.report!r} is a file", key="report", hint="the report is a folder: report.json goes into it"
        )
    if is_local_master(spec):
        resolve_device(spec.model.wanted_device)  # the executors are this machine


@dataclass(frozen=True)
class _Counts:
    rows: int
    errors: dict[str, int]
    samples: dict[str, str]


def _run(spark: SparkSession, spec: JobSpec, model: Model, source: Input, sharding: Sharding, run_id: str) -> _Counts:
    own_arrow_limits(spark, spec.batch.max_bytes, source.mean_bytes)
    plan = model.plan(
        spark, content=source.content_column, keys=source.content_keys, max_image_bytes=spec.source.max_bytes
    )
    predictions = results(sharding.content, plan, spec.engine)
    table = finish(source, predictions, stamps(model.inspected, run_id))
    observation = Observation(f"sparkinfer-{run_id}")
    with sharding.applied(spark):
        write(table.observe(observation, *_measures(source.keys[0])), spec.sink, run_id)
    seen: dict[str, Any] = observation.get
    codes = [str(code) for code in ErrorCode if seen[f"n_{code}"]]
    return _Counts(seen["rows"], {c: seen[f"n_{c}"] for c in codes}, {c: seen[f"path_{c}"] for c in codes})


def _measures(path_column: str) -> list[Column]:
    """Exact counts of what was written, and one path for each error code.

    Spark sums them over the tasks whose output counts, so retries and speculation do not count twice. As SQL text: a
    call of the JVM for every function of every measure would take a tenth of a second.
    """
    path = "`" + path_column.replace("`", "``") + "`"
    measures = ["count(1) AS rows"]
    for code in ErrorCode:
        measures.append(f"count_if(error_code = '{code}') AS n_{code}")
        measures.append(f"min(IF(error_code = '{code}', CAST({path} AS string), NULL)) AS path_{code}")
    return [F.expr(measure) for measure in measures]


def _check_budget(spec: JobSpec, result: JobResult) -> None:
    allowed = spec.errors.max_fraction
    if result.failed <= allowed * result.rows:
        return
    top = sorted(result.errors.items(), key=lambda item: -item[1])[:5]
    lines = [f"{count:,} x {code}, for example {result.samples[code]}" for code, count in top]
    raise BudgetExceededError(
        f"{result.failed:,} of {result.rows:,} rows failed, allowed is a share of {allowed:g}\n    "
        + "\n    ".join(lines),
        key="errors.max_fraction",
        hint=f"the output is in {result.output!r}; look at error_message there, mend the cause or raise the limit",
    )


def _report(spark: SparkSession, spec: JobSpec, result: JobResult) -> None:
    content = {"spec": spec.describe(), **asdict(result)}
    write_text(spark, f"{str(spec.report).rstrip('/')}/report.json", json.dumps(content, indent=2, ensure_ascii=False))


def _summary(result: JobResult) -> str:
    rate = result.rows / result.seconds
    errors = ", ".join(f"{count:,} {code}" for code, count in sorted(result.errors.items()))
    return (
        f"{result.rows:,} rows, {result.failed:,} errors{f' ({errors})' if errors else ''} in {result.seconds:.1f} s "
        f"({rate:.1f} images/s, start-up included) -> {result.output}"
    )


def _is_local(model: Model) -> bool:
    return all(local_path(uri) is not None for uri in (model.spec.path, model.spec.labels) if uri)
