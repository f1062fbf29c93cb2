"""What Spark says about the running task. Executor side: the one module below the driver that may import pyspark.

Outside a Spark task, in tests and profilers, everything answers with a neutral value and nothing is imported. A guarded
child (`executor.guard`) answers what the worker that started it was told.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark import TaskContext

__all__ = [
    "TaskFacts",
    "assume",
    "attempt_number",
    "cpus",
    "facts",
    "gpu_addresses",
    "partition_id",
    "spark_file",
    "stage_id",
    "task_attempt_id",
]


@dataclass(frozen=True)
class TaskFacts:
    """What a guarded child must know of the task. Pickles.

    Attributes:
        cpus: cores that Spark gave to the task.
        gpu_addresses: GPUs that Spark gave to the task.
    """

    cpus: int = 1
    gpu_addresses: tuple[str, ...] = ()


_assumed: TaskFacts | None = None


def facts() -> TaskFacts:
    """For a child of this process."""
    return TaskFacts(cpus(), gpu_addresses())


def assume(told: TaskFacts) -> None:
    """Makes this process, which is no worker of Spark, answer with the facts of the one that started it."""
    global _assumed  # noqa: PLW0603 - one per process, like the context itself
    _assumed = told


def _context() -> TaskContext | None:
    if "pyspark" not in sys.modules:  # a Python worker of Spark has it loaded
        return None
    from pyspark import TaskContext

    return TaskContext.get()


def gpu_addresses() -> tuple[str, ...]:
    """Addresses of the GPUs that Spark gave to this task, as its discovery script named them: ("3",) or UUIDs."""
    if _assumed:
        return _assumed.gpu_addresses
    context = _context()
    gpus = context.resources().get("gpu") if context else None
    return tuple(gpus.addresses) if gpus else ()


def partition_id() -> int:
    """Number of the partition; 0 outside Spark."""
    context = _context()
    return context.partitionId() if context else 0


def stage_id() -> int:
    """Number of the stage; 0 outside Spark."""
    context = _context()
    return context.stageId() if context else 0


def attempt_number() -> int:
    """How many attempts at this task came before this one."""
    context = _context()
    return context.attemptNumber() if context else 0


def task_attempt_id() -> int:
    """Number of this attempt, unlike that of any other attempt at any task of the application; 0 outside Spark."""
    context = _context()
    return context.taskAttemptId() if context else 0


def cpus() -> int:
    """Cores that Spark gave to this task (`spark.task.cpus`); 1 outside Spark."""
    if _assumed:
        return _assumed.cpus
    context = _context()
    return max(1, context.cpus()) if context else 1


def spark_file(name: str) -> Path:
    """This executor's copy of a file that `SparkContext.addFile` shipped.

    Args:
        name: base name of the file.
    """
    from pyspark import SparkFiles

    return Path(SparkFiles.get(name))
