"""Errors that a task only repeats: Spark would try each task again, and load the model each time. Driver only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark import SparkContext

from sparkinfer.core.errors import UserError
from sparkinfer.driver.last_cause import worker_error
from sparkinfer.driver.watching.task_status import TaskStatus

__all__ = ["refusal"]

TIMES = 2
"""Attempts that must end with the same error of ours: a single one may be a bad node's."""

_LOOKED_AT = 20
"""Failed attempts at a stage."""


def refusal(context: SparkContext, status: TaskStatus) -> UserError | None:
    """What `TIMES` attempts at tasks have failed with, in the same words: the person's to mend; else None.

    Args:
        context: Spark's.
        status: of the jobs in question.
    """
    seen: dict[str, int] = {}
    for text in _failures(context, status):
        error = worker_error(text)
        if error is not None:
            words = error.render()
            seen[words] = seen.get(words, 0) + 1
            if seen[words] >= TIMES:
                return error
    return None


def _failures(context: SparkContext, status: TaskStatus) -> Iterator[str]:
    """What failed attempts ended with: Java's stack trace with Python's in it."""
    jvm: Any = context._jvm
    store = context._jsc.sc().statusStore()
    failed = jvm.java.util.Collections.singletonList(jvm.org.apache.spark.status.api.v1.TaskStatus.FAILED)
    for stage, attempt in status.failing():
        tasks = store.taskList(stage, attempt, 0, _LOOKED_AT, jvm.scala.Option.empty(), True, failed)
        for number in range(tasks.size()):
            message = tasks.apply(number).errorMessage()
            if message.isDefined():
                yield str(message.get())
