"""How many cores one task may decode on, and whether it may fail. Driver side; pure arithmetic on Spark's settings.

`spark.task.resource.gpu.amount`, or what the model's stage asks for in its place, caps the tasks of an executor at its
GPU slots, whatever its cores. The one task that holds the GPU then decodes on all the cores that no other task can use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from sparkinfer.driver.spark.gpu_requests import EXECUTOR_GPUS, MODEL_GPUS, TASK_GPUS

__all__ = ["SETTINGS", "decode_cores", "guard_mode", "task_slots"]

SETTINGS = (
    "spark.master",
    "spark.executor.cores",
    "spark.task.cpus",
    "spark.task.maxFailures",
    TASK_GPUS,
    MODEL_GPUS,
    EXECUTOR_GPUS,
)
"""Settings that the functions here look at."""


def decode_cores(conf: Mapping[str, str], default_parallelism: int) -> int | None:
    """Cores that a task can use for itself.

    Args:
        conf: those of `SETTINGS` that are set.
        default_parallelism: cores of the whole application; all of a local master's are one executor's.

    Returns:
        `spark.executor.cores` / slots, at least `spark.task.cpus`; None (ask the task) where no GPU limits the slots,
        or the executor's cores are not set.
    """
    if not _gpus_per_task(conf):
        return None
    cores = _executor_cores(conf, default_parallelism)
    if cores is None:
        return None
    return max(int(conf.get("spark.task.cpus", "1")), cores // task_slots(conf, cores))


def task_slots(conf: Mapping[str, str], cores: int) -> int:
    """Tasks that one executor runs at once.

    Args:
        conf: those of `SETTINGS` that are set.
        cores: of the executor.

    Returns:
        As many as its cores and its GPUs allow; at least 1.
    """
    slots = cores // int(conf.get("spark.task.cpus", "1"))
    per_task = _gpus_per_task(conf)
    if per_task:
        gpus = int(conf.get(EXECUTOR_GPUS, "1"))
        # A share is of one GPU: of two GPUs, tasks that take 0.4 each get two places on either.
        slots = min(slots, gpus * int(1 / per_task) if per_task < 1 else gpus // int(per_task))
    return max(1, slots)


def guard_mode(conf: Mapping[str, str]) -> Literal["auto", "always"]:
    """When the chain runs in a process of its own: `TaskPlan.guard`.

    Args:
        conf: those of `SETTINGS` that are set.

    Returns:
        always where Spark gives up a task at its first failure, as `local[N]` does; else auto: from the second
        attempt on.
    """
    local = re.fullmatch(r"local(?:\[[^,\]]*(?:,\s*(\d+)\s*)?\])?", conf.get("spark.master", ""))
    # Local masters do not look at spark.task.maxFailures: their own number, in brackets, is 1 by default.
    failures = (local[1] or 1) if local else conf.get("spark.task.maxFailures", 4)
    return "always" if int(failures) == 1 else "auto"


def _gpus_per_task(conf: Mapping[str, str]) -> float:
    """What a task of the model's stage asks for; 0 for none."""
    return float(conf.get(MODEL_GPUS) or conf.get(TASK_GPUS) or 0)


def _executor_cores(conf: Mapping[str, str], default_parallelism: int) -> int | None:
    if re.fullmatch(r"local(\[.*\])?", conf.get("spark.master", "")):
        return default_parallelism
    cores = conf.get("spark.executor.cores")
    return int(cores) if cores else None
