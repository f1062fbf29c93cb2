"""`report:`: report.json and report.html of a run, done or failed. Driver side.

    phases, telemetry, prediction table -> content (reporting.content) -> report.json
                                                  + pictures        -> report.html (reporting.html)

What it costs does not grow with the run beyond one Spark job over a few columns of what was written.
"""

from __future__ import annotations

import json
import logging
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import SparkSession

from sparkinfer.core.errors import BudgetExceededError, SparkInferError
from sparkinfer.core.secrets import redacted
from sparkinfer.core.spec import JobSpec
from sparkinfer.driver.last_cause import last_cause
from sparkinfer.driver.listing import JAVA_ERRORS, java_reason, write_text
from sparkinfer.driver.model import Inspected
from sparkinfer.driver.phases import Phases
from sparkinfer.driver.reporting.content import Run, content_of, environment_of, versions_of
from sparkinfer.driver.reporting.html import page
from sparkinfer.driver.reporting.images import Thumbnails, drawing_process, thumbnails
from sparkinfer.driver.reporting.sheet import sheet_rows
from sparkinfer.driver.reporting.table import TableFigures, figures_of, rows_of_run
from sparkinfer.driver.sql_errors import sentence
from sparkinfer.driver.watching.telemetry import Telemetry

__all__ = ["Reporter"]

log = logging.getLogger(__name__)


class Reporter:
    """Writes the report of one run, when it has ended; nothing where the job asks for none.

    What cannot be found out (the table of a run that failed, pictures of files that are gone) is missing from the
    report, which says why.

    Args:
        spark: the session.
        spec: of the job.
        run_id: of the run.
        model: that it runs.
        telemetry: of the run.
        phases: of the run.
        started: the run, with a time zone.
    """

    def __init__(
        self,
        spark: SparkSession,
        spec: JobSpec,
        run_id: str,
        model: Inspected,
        telemetry: Telemetry,
        phases: Phases,
        started: datetime,
    ) -> None:
        self._spark, self._spec, self._run_id, self._model = spark, spec, run_id, model
        self._telemetry, self._phases, self._started = telemetry, phases, started
        self._known: dict[str, Any] = {"output": spec.sink.target, "model_digest": model.digest}

    def know(self, **known: Any) -> None:
        """Takes what is known of the outcome (`JobResult.outcome`) before the run has ended, in case that it fails."""
        self._known.update(known)

    @contextmanager
    def of_failure(self) -> Iterator[None]:
        """Writes the report of a run that fails inside.

        A run that ends before it begins to predict leaves no report, and an older one stays: a wrong job file,
        argument or model, an output that is already there, an input that is missing or empty, a checkpoint that is in
        use or another job's (exit status 2).
        """
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            snapshot = self._telemetry.snapshot()
            if snapshot.seconds > 0:
                seconds = round((datetime.now(UTC) - self._started).total_seconds(), 3)
                self.know(rows=snapshot.rows, errors=dict(snapshot.errors), seconds=seconds)
                try:
                    self.write(self._known, error)
                except Exception as problem:  # noqa: BLE001 - the run's own error is what counts; Spark may be gone
                    log.warning("no report could be written of the run that failed: %s", last_cause(problem))
            raise

    def write(self, outcome: Mapping[str, Any], error: BaseException | None = None) -> None:
        """Writes report.json and report.html into the folder that `report` names; older ones are replaced.

        Args:
            outcome: from `JobResult.outcome`, or what is known of it.
            error: what ended the run; None where it is done.

        Raises:
            UserError: the folder cannot be written.
        """
        if self._spec.report is None:
            return
        run = Run(
            spec=self._spec,
            run_id=self._run_id,
            model=self._model,
            started=self._started,
            snapshot=self._telemetry.snapshot(),
            phases=dict(self._phases.seconds),
            records=self._telemetry.records(),
            history=self._telemetry.history(),
            devices=self._telemetry.devices(),
            outcome=outcome,
            error=error,
        )
        with self._phases.phase("report"):
            _write(self._spark, run, self._spec.report.rstrip("/"))


def _write(spark: SparkSession, run: Run, folder: str) -> None:
    with drawing_process() as process:
        table = _table(spark, run)
        content = content_of(run, table, versions_of(spark), environment_of(spark))
        pictures = _pictures(spark, run, table, process)
    write_text(spark, f"{folder}/report.json", _utf8(json.dumps(content, indent=2, ensure_ascii=False)))
    write_text(spark, f"{folder}/report.html", _utf8(page(content, pictures)))


def _table(spark: SparkSession, run: Run) -> TableFigures | str:
    """What is in the run's rows, or why that is not known."""
    if not run.outcome.get("rows") and run.error is None:
        return "this run has written no rows"
    stopped = run.error is not None and not isinstance(run.error, BudgetExceededError)
    if stopped and run.spec.resume is None:  # a plain job is all or nothing
        return "the run failed before its table was written"
    try:
        figures = figures_of(rows_of_run(spark, run.spec, run.run_id), run.outcome.get("rows"))
    except (SparkInferError, *JAVA_ERRORS) as error:
        reason = error.message if isinstance(error, SparkInferError) else java_reason(error)
        log.info("the report cannot read the prediction table: %s", redacted(reason))
        if run.error is not None:
            return "the run failed before its table was written"
        return f"the prediction table cannot be read ({sentence(reason)})"
    return figures if figures.rows else "this run has written no rows"


def _pictures(spark: SparkSession, run: Run, table: TableFigures | str, process: subprocess.Popen[bytes]) -> Thumbnails:
    if isinstance(table, str):
        return Thumbnails(note=table)
    rows = [row for part in sheet_rows(asdict(table)).values() for row in part]
    found = thumbnails(spark, run.spec.source, run.spec.preprocess, [row["path"] for row in rows], process)
    # The page knows paths without their secrets.
    found.jpegs = {redacted(path): jpeg for path, jpeg in found.jpegs.items()}
    found.problems = {redacted(path): problem for path, problem in found.problems.items()}
    return found


def _utf8(text: str) -> str:
    """Without lone surrogates, which a name on a command line may bring in."""
    return text.encode("utf-8", "replace").decode("utf-8")
