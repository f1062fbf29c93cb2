"""The live figures of one run: where they come from, and what happens when they do not come. Driver only.

Tasks send messages while they run, if pyzmq is installed here and there and the network lets them pass. Beside them,
Spark itself says how many tasks run, and, whenever one ends, how many rows it had. Without messages that is all there
is, and `Telemetry` says why. Nothing here can end a run.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, cast

from pyspark.sql import SparkSession

from sparkinfer.core.errors import MissingExtraError, UserError
from sparkinfer.driver.watching.receiver import Receiver, bind_host, driver_host
from sparkinfer.driver.watching.refusals import refusal
from sparkinfer.driver.watching.task_status import TaskStatus
from sparkinfer.driver.watching.telemetry import TaskCounts, Telemetry
from sparkinfer.executor.report import Tally, TallyParam
from sparkinfer.executor.telemetry import TelemetryTarget

__all__ = ["LivePass", "LiveRun"]

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
"""Between two looks at Spark's status."""

MESSAGES_PER_SECOND = 200
"""That the driver reads, some 2 % of a core: processes of a larger cluster send less often."""

PATIENCE_S = 5.0
"""After the first rows of tasks that ended, until messages count as missing."""


class LivePass:
    """One pass over an input.

    Attributes:
        target: for `TaskPlan.telemetry`; None where no messages are to be sent.
        counts: for `TaskPlan.counts`.
    """

    def __init__(self, telemetry: Telemetry, target: TelemetryTarget | None, counts: Any) -> None:
        self.target = target
        self.counts = counts
        self._telemetry = telemetry

    def settle(self, exact: Tally) -> None:
        """Everything is written.

        Args:
            exact: counted in the table.
        """
        self._telemetry.settle(exact)


class LiveRun:
    """Collects the live figures of a run while it is open.

    Args:
        spark: the session.
        run_id: of the run.
        messages: whether tasks are to send messages (`progress.live`).

    Attributes:
        telemetry: what is known; ask it at any time, from any thread.
    """

    def __init__(self, spark: SparkSession, run_id: str, *, messages: bool = True) -> None:
        self.telemetry = Telemetry(run_id)
        self._spark, self._run_id, self._wanted = spark, run_id, messages
        self._receiver: Receiver | None = None
        self._watched: tuple[int, TaskStatus, Any] | None = None  # the pass, its tasks, their tallies
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sparkinfer-live", daemon=True)
        self._looks_without = 0  # though rows came in
        self._failed = 0  # attempts that were looked at
        self._refusal: UserError | None = None

    def __enter__(self) -> Self:
        self._receiver = self._listen()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._closing.set()
        self._thread.join()
        if self._receiver is not None:
            self._receiver.close()

    @contextmanager
    def watching(
        self, counts: Any, *, rows: int | None, known: Mapping[str, int], before: Tally | None
    ) -> Iterator[LivePass]:
        """Watches the jobs that the calling thread runs inside: one pass over an input.

        Args:
            counts: the accumulator of `driver.budget`; None where it needs none.
            rows: of the whole run, where their number is known.
            known: rows of this pass by the error code that they have before anything is read.
            before: rows that are not this pass's: committed earlier in this run, or kept.

        Raises:
            UserError: attempts at tasks fail with this again and again: the others were not waited for.
        """
        if counts is None:
            counts = self._spark.sparkContext.accumulator(Tally(), cast(Any, TallyParam()))
        # What was kept, or committed by an earlier run, is not this run's work.
        others = (before.rows if before else 0) - self.telemetry.snapshot().rows
        number = self.telemetry.begin(None if rows is None else rows - others, known)
        receiver = self._receiver
        target = None if receiver is None else replace(receiver.target, pass_number=number)
        status = TaskStatus(self._spark.sparkContext)
        with status.opened():
            self._watched = (number, status, counts)
            try:
                yield LivePass(self.telemetry, target, counts)
            except Exception:
                if self._refusal is not None:
                    raise self._refusal from None
                raise
            finally:
                self._watched = None

    def _listen(self) -> Receiver | None:
        if not self._wanted:
            self.telemetry.degrade("progress.live is off: rows are counted as tasks end")
            return None
        conf = dict(self._spark.sparkContext.getConf().getAll())
        try:
            interval_s = max(INTERVAL_S, self._spark.sparkContext.defaultParallelism / MESSAGES_PER_SECOND)
            return Receiver(self.telemetry, self._run_id, driver_host(conf), bind_host(conf), interval_s)
        except (MissingExtraError, OSError) as error:
            hint = f" ({error.hint})" if isinstance(error, MissingExtraError) else ""
            self.telemetry.degrade(f"no live figures: {error}{hint}; rows are counted as tasks end")
            return None

    def _watch(self) -> None:
        while not self._closing.wait(INTERVAL_S):
            if self._watched is None:
                continue
            number, status, counts = self._watched
            try:
                tasks = status.counts()
            except Exception as error:  # noqa: BLE001 - of py4j, of a session that is stopped; a display ends no run
                log.debug("Spark's status cannot be read: %s", error)
                tasks = TaskCounts()
            self._end_if_refused(status, tasks)
            seen: Tally = counts.value
            ended = Tally(seen.rows, dict(seen.errors))
            self.telemetry.hear_spark(number, tasks, ended)
            self._look_for_messages(ended)

    def _end_if_refused(self, status: TaskStatus, tasks: TaskCounts) -> None:
        """Ends the pass when its tasks only repeat an error that is the person's to mend."""
        context = self._spark.sparkContext
        try:
            if tasks.failed > self._failed and self._refusal is None:
                self._failed, self._refusal = tasks.failed, refusal(context, status)
            if self._refusal is not None:
                context.cancelJobsWithTag(status.tag)
        except Exception as error:  # noqa: BLE001 - as in `_watch`; Spark ends the job by itself, later
            log.debug("failed tasks cannot be looked at: %s", error)

    def _look_for_messages(self, ended: Tally) -> None:
        """Says so when tasks end and none has sent a message, and takes it back when one has."""
        if self._receiver is None:
            return
        if self.telemetry.snapshot().messages:
            self.telemetry.degrade(None)
        elif ended.rows:
            self._looks_without += 1
            if self._looks_without * INTERVAL_S >= PATIENCE_S:
                self.telemetry.degrade(
                    f"no task's messages reach {self._receiver.target.address}: pyzmq is missing on the executors, or "
                    "the network does not let them pass; rows are counted as tasks end"
                )
