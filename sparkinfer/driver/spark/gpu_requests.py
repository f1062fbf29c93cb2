"""What a job asks of Spark's GPU scheduling: whether it can be had, and for which stages. Driver side; pure arithmetic.

Spark answers a request that nobody can honour with tasks that wait for ever. So it is refused here, before the
application starts.

`spark.task.resource.gpu.amount` holds for every stage of an application, those that only list, count or move rows
included: they would run on as few cores as there are GPU slots. Where Spark allows it, the amount is taken from the
application and given to the one stage that runs the model (`gpu_stage`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sparkinfer.core.errors import DeviceError, SpecError
from sparkinfer.driver.spark.masters import manager_of

__all__ = ["EXECUTOR_GPUS", "MODEL_GPUS", "SETTINGS", "TASK_GPUS", "Placement", "check_requests", "place"]

TASK_GPUS = "spark.task.resource.gpu.amount"
EXECUTOR_GPUS = "spark.executor.resource.gpu.amount"
MODEL_GPUS = "spark.sparkinfer.model.gpus"
"""Set by a session of ours: what a task of the model's stage asks for, in place of `TASK_GPUS`."""

_SCRIPT = "spark.executor.resource.gpu.discoveryScript"
_PLUGIN = "spark.resources.discoveryPlugin"
_VENDOR = "spark.executor.resource.gpu.vendor"
_DYNAMIC = "spark.dynamicAllocation.enabled"

SETTINGS = ("spark.master", TASK_GPUS, EXECUTOR_GPUS, _SCRIPT, _PLUGIN, _VENDOR, _DYNAMIC)
"""Settings that the functions here look at."""

_OURS = "conf/gpu_discovery.sh"
_PROFILES_SINCE = 4
"""Major version of Spark in which `DataFrame.mapInArrow` takes a resource profile."""


@dataclass(frozen=True)
class Placement:
    """Which stages ask for GPUs.

    Attributes:
        model_gpus: what a task of the model's stage asks for, and no other stage; None leaves the settings as they are.
        reason: for the log; None where nothing asks for a GPU.
    """

    model_gpus: str | None
    reason: str | None


def check_requests(conf: Mapping[str, str], device: str, spark_version: str) -> None:
    """Refuses GPU requests that no cluster of the kind can honour.

    Args:
        conf: those of `SETTINGS` that are set, for an application that is yet to start.
        device: `model.device`.
        spark_version: 4.3.0

    Raises:
        SpecError: a setting is missing, malformed, or does not fit the others or the master.
        DeviceError: the model needs a GPU that nothing asks for.
    """
    per_task, per_executor = _task_amount(conf, spark_version), _executor_amount(conf)
    kind = manager_of(conf.get("spark.master", ""))
    if kind == "local" and per_executor and not per_task:
        raise SpecError(
            f"the master is {conf['spark.master']!r}, which has no executors that could hold GPUs",
            key=EXECUTOR_GPUS,
            hint="leave it out; with a local master model.device chooses the GPU",
        )
    if not per_task:
        _check_unasked(kind, device, per_executor)
        return
    if kind == "local":
        raise SpecError(
            f"the master is {conf['spark.master']!r}, which has no GPUs to give: the tasks would wait for ever",
            key=TASK_GPUS,
            hint="leave it out; with a local master model.device chooses the GPU",
        )
    if not per_executor:
        raise SpecError(
            f"tasks ask for GPUs ({TASK_GPUS}={conf[TASK_GPUS]}), and executors have none",
            key=EXECUTOR_GPUS,
            allowed=["a whole number, at least what one task asks for"],
            hint=f"set {EXECUTOR_GPUS}, for example to 1",
        )
    if per_task > per_executor:
        raise SpecError(
            f"a task asks for {conf[TASK_GPUS]} GPUs, and an executor has {per_executor}",
            key=TASK_GPUS,
            allowed=[f"at most {per_executor}"],
            hint=f"the model uses one GPU a task: set it to 1, or raise {EXECUTOR_GPUS}",
        )
    if kind in {"yarn", "kubernetes"} and not conf.get(_SCRIPT) and not conf.get(_PLUGIN):
        raise SpecError(
            "without a script that lists its GPUs an executor cannot tell tasks which one is theirs",
            key=_SCRIPT,
            allowed=["path on the executors of a script that prints Spark's JSON"],
            hint=f"ship {_OURS} with --files, or in the image, and name it here",
        )
    if kind == "kubernetes" and not conf.get(_VENDOR):
        raise SpecError(
            "Kubernetes names GPUs by their vendor", key=_VENDOR, allowed=["nvidia.com"], hint="set it to nvidia.com"
        )


def place(conf: Mapping[str, str], engine: str, spark_version: str) -> Placement:
    """Which stages of a job ask for GPUs.

    Args:
        conf: those of `SETTINGS` that are set, and checked.
        engine: of the job.
        spark_version: 4.3.0
    """
    wanted = conf.get(TASK_GPUS)
    if not wanted or not float(wanted):
        return Placement(None, None)
    obstacle = _obstacle(conf, engine, spark_version)
    if obstacle:
        return Placement(None, f"every stage asks for {wanted} GPU a task, also those without the model: {obstacle}")
    return Placement(wanted, f"only the stage that runs the model asks for GPUs: {wanted} a task")


def _obstacle(conf: Mapping[str, str], engine: str, spark_version: str) -> str | None:
    """Why the model's stage cannot ask by itself."""
    if int(spark_version.split(".", maxsplit=1)[0]) < _PROFILES_SINCE:
        return f"Spark {spark_version} gives no stage of a query resources of its own, {_PROFILES_SINCE}.0 does"
    if engine == "predict_batch_udf":
        return "engine predict_batch_udf is a column function, and those cannot ask; arrow and pandas can"
    if conf.get(_DYNAMIC, "").lower() == "true":
        # A stage with its own resources then gets its own executors, while the others idle until they time out.
        return f"with {_DYNAMIC} it would need executors of its own, and the idle ones would hold the GPUs meanwhile"
    master = conf.get("spark.master", "")
    if not master:
        return "nothing names the master; only standalone, YARN and Kubernetes can give one stage GPUs of its own"
    if manager_of(master) not in {"standalone", "yarn", "kubernetes"}:
        return f"the master {master!r} is none of standalone, YARN and Kubernetes"
    return None


def _check_unasked(kind: str, device: str, per_executor: int) -> None:
    """No task asks for a GPU; does the model get a right one all the same?"""
    if device == "cpu" or kind == "local":
        return
    # A pod sees its own GPU and no other. Elsewhere all executors of a node see all of its GPUs.
    if per_executor > (1 if kind == "kubernetes" else 0):
        raise SpecError(
            f"executors hold GPUs ({EXECUTOR_GPUS}={per_executor}) and no task asks for one: all tasks of a node would "
            "use its first",
            key=TASK_GPUS,
            allowed=["1", "a share: 0.5, 0.25"],
            hint="set it to 1, or to a share where several tasks fit on one GPU",
        )
    if device == "cuda" and not per_executor:
        raise DeviceError(
            "the model is to run on a GPU, and nothing asks the cluster for one",
            key="model.device",
            allowed=["auto", "cpu", "cuda with GPU resources", "cuda:N"],
            hint=f"set {EXECUTOR_GPUS} and {TASK_GPUS} to 1; cuda:0 lets all tasks of a node share its first GPU",
        )


def _task_amount(conf: Mapping[str, str], spark_version: str) -> float:
    """`TASK_GPUS`; 0 where it is not set."""
    text = conf.get(TASK_GPUS, "0").strip()
    # What Spark takes for a share: see the assertion in its TaskResourceRequest, of either version.
    largest = 1.0 if int(spark_version.split(".", maxsplit=1)[0]) >= 4 else 0.5
    amount = float(text) if re.fullmatch(r"\d+(\.\d*)?|\.\d+", text) else -1.0
    if amount < 0 or (amount > largest and not amount.is_integer()):
        raise SpecError(
            f"{text!r} is no number of GPUs that a task can have",
            key=TASK_GPUS,
            allowed=["a whole number", f"a share, at most {largest:g}"],
            hint="1; or 0.5, where two tasks fit on one GPU",
        )
    return amount


def _executor_amount(conf: Mapping[str, str]) -> int:
    """`EXECUTOR_GPUS`; 0 where it is not set."""
    text = conf.get(EXECUTOR_GPUS, "0").strip()
    if not re.fullmatch(r"\d+", text):
        raise SpecError(
            f"{text!r} is no number of GPUs that an executor can have",
            key=EXECUTOR_GPUS,
            allowed=["a whole number"],
            hint=f"several tasks share a GPU by {TASK_GPUS}, for example 0.5",
        )
    return int(text)
