"""What a run is doing, in words: names for Spark's UI and seconds for the report. Driver side; nothing pickles.

Spark shows the line of Python that called it, which is a line of ours and tells nobody anything. Its jobs, stages and
SQL queries take another name from the calling thread, and so do the threads that Spark starts from it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

from pyspark.sql import SparkSession
from pyspark.traceback_utils import SCCallSiteSync

__all__ = ["Phases"]

_DESCRIPTION = "spark.job.description"
"""Of jobs, their stages and SQL queries: `SparkContext.SPARK_JOB_DESCRIPTION`."""
_GROUP = "spark.jobGroup.id"
"""`SparkContext.SPARK_JOB_GROUP_ID`."""
_STAGE_NAME = "callSite.short"
"""`CallSite.SHORT_FORM`: the name of stages and jobs, in place of `save at NativeMethodAccessorImpl.java:0`."""


class Phases:
    """The phases of one run.

    Args:
        spark: the session.
        job: the job's name.
        run_id: of the run.
        before: seconds of phases that are over: the session's start.
    """

    def __init__(self, spark: SparkSession, job: str, run_id: str, before: Mapping[str, float] | None = None) -> None:
        self._spark, self._job, self._run_id = spark, job, run_id
        self._seconds = dict(before or {})

    @property
    def seconds(self) -> Mapping[str, float]:
        """What each phase that has ended took, in the order in which they first ended; one that came again adds up."""
        return MappingProxyType(self._seconds)

    @contextmanager
    def phase(self, name: str, detail: str = "") -> Iterator[None]:
        """Names the Spark jobs that this thread runs inside, and takes the time.

        A job group that somebody else has set stays: notebooks and streaming queries stop their jobs by it.

        Args:
            name: of the phase: listing, schema, predict and write, report, ...
            detail: more to tell of this time: `snapshot 7`.
        """
        context = self._spark.sparkContext
        what = f"{name}, {detail}" if detail else name
        values = {_DESCRIPTION: f"{self._job}: {what} (run {self._run_id})", _STAGE_NAME: what}
        if context.getLocalProperty(_GROUP) is None:
            values[_GROUP] = f"sparkinfer-{self._run_id}"
        before: dict[str, Any] = {key: context.getLocalProperty(key) for key in values}
        started = time.monotonic()
        try:
            # Without it pyspark's own `collect` names its job after a line of ours, and then takes our name away.
            with SCCallSiteSync(context):  # type: ignore[no-untyped-call]
                for key, value in values.items():
                    context.setLocalProperty(key, value)
                yield
        finally:
            self._seconds[name] = self._seconds.get(name, 0.0) + time.monotonic() - started
            for key, earlier in before.items():
                context.setLocalProperty(key, earlier)  # None removes it
