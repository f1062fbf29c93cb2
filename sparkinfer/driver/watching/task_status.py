"""How many tasks run, are done, have failed: by Spark's own status. Driver only."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import SparkContext, SparkStageInfo

from sparkinfer.driver.watching.telemetry import TaskCounts

__all__ = ["TaskStatus"]


class TaskStatus:
    """The tasks of all jobs that the thread which opened it starts while it is open; asked by another thread.

    Args:
        context: Spark's.

    Attributes:
        tag: that Spark knows the jobs by.
    """

    def __init__(self, context: SparkContext) -> None:
        self._context = context
        self.tag = f"sparkinfer-progress-{uuid.uuid4().hex}"
        self._stages: dict[int, tuple[int, ...]] = {}  # of each job
        self._whole: dict[int, SparkStageInfo] = {}  # stages that are over: Spark forgets old ones
        self._failing: dict[int, int] = {}

    @contextmanager
    def opened(self) -> Iterator[None]:
        """While it is open, jobs of the calling thread count."""
        self._context.addJobTag(self.tag)
        try:
            yield
        finally:
            self._context.removeJobTag(self.tag)

    def counts(self) -> TaskCounts:
        """The tasks of all stages that have begun."""
        tracker = self._context.statusTracker()
        for job in self._context._jsc.sc().statusTracker().getJobIdsForTag(self.tag):
            if job not in self._stages and (info := tracker.getJobInfo(job)) is not None:
                self._stages[job] = tuple(info.stageIds)
        total = done = running = failed = 0
        for stage in {stage for stages in self._stages.values() for stage in stages}:
            seen = self._whole.get(stage) or tracker.getStageInfo(stage)
            if seen is None or not seen.numActiveTasks + seen.numCompletedTasks + seen.numFailedTasks:
                continue  # not begun, and perhaps never: what another job has computed is skipped
            if seen.numTasks and seen.numCompletedTasks >= seen.numTasks and not seen.numActiveTasks:
                self._whole[stage] = seen
            total += seen.numTasks
            done += seen.numCompletedTasks
            running += seen.numActiveTasks
            failed += seen.numFailedTasks
            if seen.numFailedTasks:
                self._failing[stage] = seen.currentAttemptId
        return TaskCounts(total, done, running, failed)

    def failing(self) -> list[tuple[int, int]]:
        """(stage, attempt at it) of those with failed tasks, as of the last count."""
        return list(self._failing.items())
