"""How many rows may fail: `errors.max_fraction` and `errors.max_rows`, while a job runs and after it. Driver side.

After the job the exact counts of what was written decide. While it runs, the executors tell what they see whenever a
task ends (`executor.report`; Spark delivers it no earlier), and a hopeless job is stopped:

- at once when it is proven that the budget cannot be kept: more rows failed than `max_rows`, or than `max_fraction` of
  all rows, where their number is known before they are read;
- when next to none of the rows succeeded (wrong folder, wrong model), more failed than `max_fraction`, and enough was
  seen: `MIN_ROWS` rows, and of the whole the share `MIN_SHARE`. A bad start, or a bad folder, is no hopeless job.

Fewer than `MIN_ROWS` rows stop nothing, and a run that is nearly done (`LATE_SHARE`) ends by itself: its table, with a
message for each failed row, is worth more than the time. Two attempts at one task count once. A job with no more tasks
than cores is not stopped early: all its tasks end together.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from threading import Event, Thread
from typing import Any, cast

from pyspark import SparkContext
from pyspark.sql import SparkSession

from sparkinfer.core.errors import BudgetExceededError
from sparkinfer.core.spec import ErrorsSpec
from sparkinfer.driver.sources.inputs import Input
from sparkinfer.executor.report import Tally, TallyParam

__all__ = ["Budget", "expected_rows"]

log = logging.getLogger(__name__)

MIN_ROWS = 1_000
"""Fewer rows prove nothing about the rest: some batches of every core."""

LATE_SHARE = 0.9
"""Of all rows, or else of all tasks, from which a run is let finish."""

MIN_SHARE = 0.05
"""Of all rows, or else of all tasks, that must be seen: the first folder of many may be bad and the rest good."""

MIN_ROWS_OF_UNKNOWN = 10_000
"""Instead, where neither the number of rows nor that of tasks is known."""

HOPELESS = 0.99
"""Failed share from which a run is hopeless: in a wrong folder a stray image may succeed."""

_AGAIN_SECONDS = 1.0
"""Between two cancellations: Spark cancels the jobs that run, and a query may start another just then."""

_CODES_SHOWN = 5


class Budget:
    """The `errors:` block, applied.

    Args:
        errors: the block.
    """

    def __init__(self, errors: ErrorsSpec) -> None:
        self._errors = errors

    def check(self, rows: int, errors: Mapping[str, int], samples: Mapping[str, str], output: str) -> None:
        """Compares the exact counts of what was written.

        Args:
            rows: all.
            errors: failed rows by code.
            samples: one path for each code.
            output: where they are.

        Raises:
            BudgetExceededError: more failed than allowed.
        """
        failed = sum(errors.values())
        key = self._exceeded(failed, rows)
        if key is not None:
            raise BudgetExceededError(
                f"{failed:,} of {rows:,} rows failed, allowed {self._allowed(key)}{_top(errors, samples)}",
                key=key,
                hint=f"the output is in {output!r}; look at error_message there, mend the cause or raise the limit",
            )

    @contextmanager
    def watching(
        self,
        spark: SparkSession,
        output: str,
        *,
        rows: int | None = None,
        tasks: int | None = None,
        before: Tally | None = None,
    ) -> Iterator[Any]:
        """Watches the Spark jobs that the calling thread runs inside, and stops them when they are hopeless.

        Args:
            spark: the session.
            output: where the rows go, for the message.
            rows: of the whole run, where their number is known.
            tasks: of the jobs inside, where their number is known.
            before: what earlier jobs of the same run have committed.

        Yields:
            What belongs into `TaskPlan.counts`; None when every row may fail.

        Raises:
            BudgetExceededError: stopped; the figures are those of the tasks that ended.
        """
        if self._errors.max_fraction >= 1 and self._errors.max_rows is None:
            yield None
            return
        earlier = before or Tally()

        def judge(live: Tally) -> str | None:
            return self.hopeless(_sum(earlier, live), rows, len(live.attempts) / tasks if tasks else None)

        context = spark.sparkContext
        watch, tag = _Watch(judge), f"sparkinfer-budget-{uuid.uuid4().hex}"
        thread = Thread(target=watch.stop_jobs, args=(context, tag), name="sparkinfer-budget", daemon=True)
        thread.start()
        context.addJobTag(tag)
        try:
            # Spark asks of it what it does, not its class, which executors without pyspark's driver part do not need.
            yield context.accumulator(Tally(), cast(Any, watch))
        except Exception as error:
            if watch.key is None:
                raise
            raise self._stopped(watch.key, _sum(earlier, watch.seen), rows, output, before) from error
        finally:
            context.removeJobTag(tag)
            watch.end()
            thread.join()

    def hopeless(self, seen: Tally, rows: int | None, share_of_tasks: float | None) -> str | None:
        """The limit that a run will exceed, as far as can be told from the rows seen; None when it may still end well.

        Args:
            seen: all rows of the run so far.
            rows: of the whole run, where their number is known.
            share_of_tasks: that ended, in [0, 1], where the number of tasks is known.
        """
        share = seen.rows / rows if rows else share_of_tasks
        if seen.rows < MIN_ROWS or (share is not None and share >= LATE_SHARE):
            return None
        if self._errors.max_rows is not None and seen.failed > self._errors.max_rows:
            return "errors.max_rows"
        if rows and seen.failed / rows > self._errors.max_fraction:
            return "errors.max_fraction"
        if seen.failed / seen.rows < HOPELESS or self._exceeded(seen.failed, seen.rows) is None:
            return None
        enough = seen.rows >= MIN_ROWS_OF_UNKNOWN if share is None else share >= MIN_SHARE
        return "errors.max_fraction" if enough else None

    def _exceeded(self, failed: int, rows: int) -> str | None:
        """The limit that these counts exceed."""
        if self._errors.max_rows is not None and failed > self._errors.max_rows:
            return "errors.max_rows"
        # Not failed > fraction * rows: 0.29 * 100 is less than 29.
        return "errors.max_fraction" if rows and failed / rows > self._errors.max_fraction else None

    def _allowed(self, key: str) -> str:
        if key == "errors.max_rows":
            return f"are {self._errors.max_rows:,}"
        return f"is a share of {self._errors.max_fraction:g}"

    def _stopped(
        self, key: str, seen: Tally, rows: int | None, output: str, before: Tally | None
    ) -> BudgetExceededError:
        kept = f"nothing was written to {output!r}" if before is None else f"what was finished stays in {output!r}"
        return BudgetExceededError(
            f"stopped early after {seen.rows:,}{f' of {rows:,}' if rows else ''} rows: {seen.failed:,} failed, "
            f"allowed {self._allowed(key)}{_top(seen.errors, seen.samples)}",
            key=key,
            hint=f"{kept}; is it the right input, and the right model for it? Mend the cause or raise the limit",
        )


def expected_rows(source: Input) -> int | None:
    """How many rows the prediction table will have, where that is known before anything is read."""
    if source.kind != "images" or source.files is None or source.rows is not None:
        return None
    return len(source.files.lengths) + sum(source.known.values())


class _Watch(TallyParam):
    """Adds the tallies on the driver, and judges the sum each time.

    Args:
        judge: gives the limit that will be exceeded.
    """

    def __init__(self, judge: Callable[[Tally], str | None]) -> None:
        self._judge = judge
        self._told, self._ended = Event(), Event()
        self.key: str | None = None
        self.seen = Tally()

    def __reduce__(self) -> tuple[type[TallyParam], tuple[()]]:
        return TallyParam, ()  # on an executor there is nothing to judge

    def addInPlace(self, total: Tally, more: Tally) -> Tally:  # noqa: N802 - Spark's name
        """Called by the thread that takes Spark's news of ended tasks: must not wait for Spark."""
        total.add(more)
        if self.key is None:
            self.key = self._judge(total)
            if self.key is not None:
                self.seen = deepcopy(total)
                self._told.set()
        return total

    def stop_jobs(self, context: SparkContext, tag: str) -> None:
        """Waits for the verdict and carries it out; runs in a thread of its own."""
        self._told.wait()
        if self.key is not None:
            log.info("stopping: %s will be exceeded", self.key)
        while self.key is not None and not self._ended.is_set():
            context.cancelJobsWithTag(tag)
            self._ended.wait(_AGAIN_SECONDS)

    def end(self) -> None:
        """The jobs have ended, one way or another."""
        self._ended.set()
        self._told.set()


def _sum(earlier: Tally, live: Tally) -> Tally:
    """Rows of earlier jobs and of this one, whose tasks have the same numbers."""
    both = deepcopy(earlier)
    both.add(Tally(live.rows, live.errors, live.samples))
    return both


def _top(errors: Mapping[str, int], samples: Mapping[str, str]) -> str:
    """The most frequent codes, a line each, with the path of one row."""
    top = sorted(errors.items(), key=lambda item: (-item[1], item[0]))[:_CODES_SHOWN]
    return "".join(
        f"\n    {count:,} x {code}" + (f", for example {samples[code]}" if code in samples else "")
        for code, count in top
    )
