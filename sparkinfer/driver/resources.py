"""How many cores one task may decode on, and whether it may fail. Driver side; pure arithmetic on Spark's settings.

`spark.task.resource.gpu.amount` caps the tasks of an executor at its GPU slots, whatever its cores. The one task that
holds the GPU then decodes on all the cores that no other task can use.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

__all__ = ["SETTINGS", "decode_cores", "guard_mode"]

SETTINGS = (
    "spark.master",
    "spark.executor.cores",
    "spark.task.cpus",
    "spark.task.maxFailures",
    "spark.task.resource.gpu.amount",
    "spark.executor.resource.gpu.amount",
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
    per_task = conf.get("spark.task.resource.gpu.amount")
    if per_task is None:
        return None
    cores = _executor_cores(conf, default_parallelism)
    if cores is None:
        return None
    cpus = int(conf.get("spark.task.cpus", "1"))
    gpus = float(conf.get("spark.executor.resource.gpu.amount", "1"))
    slots = max(1, min(cores // cpus, int(gpus / float(per_task))))
    return max(cpus, cores // slots)


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


def _executor_cores(conf: Mapping[str, str], default_parallelism: int) -> int | None:
    if re.fullmatch(r"local(\[.*\])?", conf.get("spark.master", "")):
        return default_parallelism
    cores = conf.get("spark.executor.cores")
    return int(cores) if cores else None
