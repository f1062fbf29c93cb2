"""One job from spec to report. Driver side.

spec -> inspect model -> session -> read -> shard -> predict -> write -> report
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from threading import Event

from rich.console import Console
from rich.markup import escape

from sparkinfer.core.errors import BudgetExceededError, SpecError
from sparkinfer.core.schema import PREDICTION_COLUMNS
from sparkinfer.core.secrets import redacted
from sparkinfer.core.spec import JobSpec
from sparkinfer.driver.budget import Budget, expected_rows
from sparkinfer.driver.checkpoints.ledger import Ledger
from sparkinfer.driver.execution import Run, cut, predict_into
from sparkinfer.driver.inspect import check_providers
from sparkinfer.driver.interrupts import Interrupts, handler_kept
from sparkinfer.driver.last_cause import told_by_workers
from sparkinfer.driver.model import Model
from sparkinfer.driver.paths import local_path
from sparkinfer.driver.phases import Phases
from sparkinfer.driver.predict import new_run_id
from sparkinfer.driver.read import check_local_source, read_source
from sparkinfer.driver.report import Reporter
from sparkinfer.driver.result import JobResult, Retried
from sparkinfer.driver.resume import held_for_retry, run_snapshots
from sparkinfer.driver.retry import find_failed, write_retried
from sparkinfer.driver.session import get_session, is_local_master, named_master
from sparkinfer.driver.sinks.checks import check_apart, check_checkpoint
from sparkinfer.driver.sources.inputs import size_text
from sparkinfer.driver.spark.masters import check_master
from sparkinfer.driver.watching.latency import Latency
from sparkinfer.driver.watching.live import LiveRun
from sparkinfer.driver.watching.metrics import check_metrics, run_metrics
from sparkinfer.driver.watching.progress import Progress
from sparkinfer.driver.wording import counted
from sparkinfer.driver.write import check_local_target, check_target, write
from sparkinfer.executor.device import resolve_device
from sparkinfer.executor.report import Tally

__all__ = ["JobResult", "check_before_spark", "run_job"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Done:
    """What either way of running a job gives."""

    counts: Tally
    sharding: str
    partitions: int | None = None
    left_out: dict[str, int] = field(default_factory=dict)
    snapshots: int | None = None
    finished_before: int = 0
    changed: int = 0
    retry: Retried | None = None


def run_job(
    spec: JobSpec,
    console: Console | None = None,
    stop: Event | None = None,
    *,
    retry_codes: Sequence[str] | None = None,
) -> JobResult:
    """Runs a job to its end.

    Args:
        spec: what to do.
        console: where progress is told; None tells nothing.
        stop: set by another thread to end a job with `resume.trigger` after its present snapshot.
        retry_codes: run the failed rows of the output again that have one of these codes (all where there is none) and
            put them into their places; None runs the job.

    Raises:
        UserError: something in the spec, the model, the input or the output that the person can mend; raised before
            Spark is started where Spark is not needed to know.
        BudgetExceededError: more rows failed than `errors.max_fraction` allows; the output stays.
    """
    out = console or Console(quiet=True)

    def tell(text: str) -> None:
        out.print(redacted(text), soft_wrap=True, highlight=False)

    began, started = datetime.now(UTC), time.monotonic()
    check_before_spark(spec, retries=retry_codes is not None)
    model = Model(spec.model, spec.preprocess, spec.postprocess, spec.batch)
    if _is_local(model):
        _ = model.inspected
    with handler_kept():
        spark = get_session(spec)
    found = model.inspected
    tell(
        f"[bold]model[/]     {escape(found.spec.display_name)} ({found.spec.format}, {size_text(found.artifact.size)}, "
        f"{found.signature.num_classes} classes), takes {escape(str(found.signature.input))}"
    )
    check_apart(spark, spec)
    check_checkpoint(spark, spec)
    run_id = new_run_id()
    latency = Latency()
    phases = Phases(spark, spec.name, run_id, {"start": time.monotonic() - started})
    live = LiveRun(spark, run_id, messages=spec.progress.live)
    run = Run(spark, spec, model, run_id, live, phases)
    reporter = Reporter(spark, spec, run_id, found, live.telemetry, phases, began)
    metrics = run_metrics(
        spark, spec, found.spec, live.telemetry, latency, lambda text: tell(f"[bold]metrics[/]   {escape(text)}")
    )
    progress = Progress(out, live.telemetry, spec.progress.every_seconds)
    signals = Interrupts(spark.sparkContext, run_id)
    with signals, live, metrics, progress, reporter.of_failure(), signals.ending_jobs(), told_by_workers():
        if retry_codes is not None:
            done = _retry(run, reporter, tell, retry_codes)
        elif spec.resume is None:
            done = _plain(run, reporter, tell)
        else:
            done = _resumable(run, tell, stop, latency)
    counts = done.counts
    result = JobResult(
        run_id=run_id,
        rows=counts.rows,
        errors=counts.errors,
        samples=counts.samples,
        output=spec.sink.target,
        seconds=round(time.monotonic() - started, 3),
        model_digest=found.digest,
        sharding=done.sharding,
        partitions=done.partitions,
        left_out=done.left_out,
        snapshots=done.snapshots,
        finished_before=done.finished_before,
        changed=done.changed,
        retry=done.retry,
    )
    exceeded = _exceeded_budget(spec, counts)
    reporter.write(result.outcome(), exceeded)
    tell(f"[bold]done[/]      {escape(_summary(result))}")
    if exceeded is not None:
        raise exceeded
    return result


def _plain(
    run: Run,
    reporter: Reporter,
    tell: Callable[[str], None],
) -> _Done:
    """One job, all or nothing."""
    spark, spec = run.spark, run.spec
    with run.phases.phase("listing" if spec.source.kind in {"images", "paths"} else "schema"):
        source = read_source(spark, spec.source)
        check_target(spark, spec.sink, [*source.keys, *(c.name for c in PREDICTION_COLUMNS)])
    tell(f"[bold]input[/]     {escape(source.describe())}")
    sharding = cut(run, source)
    tell(f"[bold]sharding[/]  {escape(sharding.reason)}")
    reporter.know(sharding=sharding.reason, partitions=sharding.partitions, left_out=source.left_out)
    counts = predict_into(
        lambda table: write(table, spec.sink, run.run_id),
        run,
        source,
        sharding,
        rows=expected_rows(source),
        tasks=sharding.partitions,
    )
    return _Done(counts, sharding.reason, sharding.partitions, source.left_out)


def _resumable(
    run: Run,
    tell: Callable[[str], None],
    stop: Event | None,
    latency: Latency,
) -> _Done:
    """A series of snapshots."""
    progress = run_snapshots(
        run,
        say=lambda text: tell(f"[bold]resume[/]    {escape(text)}"),
        after_snapshot=partial(_check_so_far, run.spec),
        committed=latency.committed,
        stop=stop,
    )
    return _Done(
        progress.counts,
        progress.sharding,
        left_out=progress.left_out,
        snapshots=progress.snapshots,
        finished_before=progress.finished_before,
        changed=progress.changed,
    )


def _retry(
    run: Run,
    reporter: Reporter,
    tell: Callable[[str], None],
    codes: Sequence[str],
) -> _Done:
    """The failed rows of an earlier output, in their own places."""
    if run.spec.resume is None:
        return _retried(run, reporter, tell, codes, None)
    with held_for_retry(run, tell) as ledger:  # nobody may add snapshots meanwhile
        return _retried(run, reporter, tell, codes, ledger)


def _retried(
    run: Run,
    reporter: Reporter,
    tell: Callable[[str], None],
    codes: Sequence[str],
    ledger: Ledger | None,
) -> _Done:
    spark, spec = run.spark, run.spec
    with run.phases.phase("failed rows"):
        retry = find_failed(spark, spec, codes)
    tell(f"[bold]retry[/]     {escape(retry.describe())}")
    if retry.snapshots and spec.resume is None:
        raise SpecError(
            f"{spec.sink.target!r} was written in snapshots, and somebody may be adding to it",
            key="resume.checkpoint",
            hint="name its checkpoint, with --checkpoint or in the job file",
        )
    counts = Tally(retry.counts.rows, dict(retry.counts.errors), dict(retry.counts.samples))
    told = Retried(rows=retry.rows, failed=retry.failed, stay=retry.stay)
    reporter.know(retry=told.outcome(counts.rows + retry.rows, None))
    if retry.source is None:
        return _Done(counts, "nothing to run", retry=told)
    sharding = cut(run, retry.source)
    tell(f"[bold]sharding[/]  {escape(sharding.reason)}")
    reporter.know(sharding=sharding.reason, partitions=sharding.partitions)
    again = predict_into(
        lambda table: write_retried(spark, retry, table, spec.sink, run.run_id),
        run,
        retry.source,
        sharding,
        rows=counts.rows + retry.rows,
        before=counts,
    )
    if ledger is not None and retry.units is not None:
        ledger.learn(retry.units)
    counts.add(again)
    mended = max(0, retry.failed - again.failed)
    told = replace(told, rows=again.rows, mended=mended, errors=dict(again.errors), samples=dict(again.samples))
    return _Done(counts, sharding.reason, sharding.partitions, retry=told)


def check_before_spark(spec: JobSpec, *, retries: bool) -> None:
    """Everything that can be told without Spark, within a second.

    Args:
        spec: the job.
        retries: the output is meant to be there.

    Raises:
        UserError: what is wrong.
    """
    if spec.resume is None and not retries:  # else the output is meant to be there
        check_local_target(spec.sink)
    check_apart(None, spec)
    check_checkpoint(None, spec)
    check_local_source(spec.source)
    check_metrics(spec.metrics)
    report = local_path(spec.report) if spec.report else None
    if report is not None and report.exists() and not report.is_dir():
        raise SpecError(
            f"{spec.report!r} is a file", key="report", hint="the report is a folder: report.html goes into it"
        )
    check_master(named_master(spec))
    if is_local_master(spec):
        check_providers(spec.model, resolve_device(spec.model.wanted_device))  # the executors are this machine


def _check_so_far(spec: JobSpec, counts: Tally, rows: int | None, share: float | None) -> None:
    """Ends a run between two snapshots when the rest cannot help."""
    if Budget(spec.errors).hopeless(counts, rows, share):
        _check_budget(spec, counts)


def _check_budget(spec: JobSpec, counts: Tally) -> None:
    Budget(spec.errors).check(counts.rows, counts.errors, counts.samples, spec.sink.target)


def _exceeded_budget(spec: JobSpec, counts: Tally) -> BudgetExceededError | None:
    try:
        _check_budget(spec, counts)
    except BudgetExceededError as error:
        return error
    return None


def _summary(result: JobResult) -> str:
    if result.snapshots is not None and not result.rows:
        return f"nothing new: {result.finished_before:,} inputs are finished -> {result.output}"
    rate = (result.rows if result.retried is None else result.retried) / result.seconds
    errors = ", ".join(f"{count:,} {code}" for code, count in sorted(result.errors.items()))
    return (
        f"{f'{result.retry.describe()}; the table has ' if result.retry else ''}{result.rows:,} rows, "
        f"{counted(result.failed, 'error')}{f' ({errors})' if errors else ''} in {result.seconds:.1f} s "
        f"({rate:.1f} images/s, start-up included) -> {result.output}"
    )


def _is_local(model: Model) -> bool:
    return all(local_path(uri) is not None for uri in (model.spec.path, model.spec.labels) if uri)
