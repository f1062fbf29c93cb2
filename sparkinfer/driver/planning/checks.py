"""What does not fit: a profile against a job and a cluster. Driver side; pure arithmetic on settings.

An error is something that cannot work: Spark refuses it, no executor can start, or the smallest executor that the model
allows is too large. All else is a warning: figures of `planning.memory` are upper ones. Here is what concerns settings
among each other; `planning.fit` compares them with memory, nodes and tasks.
"""

from __future__ import annotations

from collections.abc import Iterator

from sparkinfer.core.errors import UserError
from sparkinfer.driver.planning.facts import Facts, Finding
from sparkinfer.driver.planning.fit import check_fit
from sparkinfer.driver.spark.gpu_requests import MODEL_GPUS, check_requests
from sparkinfer.driver.wording import printable

__all__ = ["check"]

KRYO_LIMIT = 2048 << 20
"""`KryoSerializer` takes less only: its buffer is one array."""


def check(facts: Facts) -> list[Finding]:
    """Everything that does not fit, errors first."""
    checks = (_ignored, _places, _gpus, _cores, _dynamic, _failures, _kryo, check_fit)
    found = [finding for one in checks for finding in one(facts)]
    return sorted(found, key=lambda finding: finding.level)


def _ignored(facts: Facts) -> Iterator[Finding]:
    for key in facts.settings.values:
        if not key.startswith("spark."):
            yield Finding("warning", key, "spark-submit ignores what does not begin with spark.", "remove the line")
    if facts.fleet.manager == "local" and facts.submitted:
        for key in ("spark.executor.memory", "spark.executor.instances", "spark.executor.cores"):
            if key in facts.settings:
                yield Finding(
                    "warning", key, f"{facts.master} has no executors: the driver runs the tasks", "spark.driver.memory"
                )


def _places(facts: Facts) -> Iterator[Finding]:
    """Paths that executors, or a driver on the cluster, will look for on machines of their own."""
    master, settings = facts.master, facts.settings
    if facts.fleet.manager not in {"standalone", "yarn", "kubernetes"} or master.startswith("local-cluster["):
        return
    driver_moves = settings.text("spark.submit.deployMode") == "cluster"
    for key, path in facts.local.items():
        has_default = "spark.hadoop.fs.defaultFS" in settings and not path.startswith("file:")
        if has_default or (key.startswith("model.") and not driver_moves):  # the driver hands the model out
            continue
        who = "the driver" if key.startswith("model.") else "every executor"
        yield Finding(
            "warning",
            key,
            f"{printable(path)} is a path on this machine, and {who} looks for it on the machine that it runs on",
            "a place that all of them have: hdfs://, s3a://, or a folder that is mounted on each",
        )


def _gpus(facts: Facts) -> Iterator[Finding]:
    try:
        # Without a master nobody knows who gives executors their GPUs: Databricks does by itself. A running session of
        # ours has been checked, and its setting for the model's stage has taken the place of another.
        if facts.master and MODEL_GPUS not in facts.settings:
            check_requests({**facts.settings.values, "spark.master": facts.master}, facts.device, facts.spark_version)
    except UserError as error:
        yield Finding("error", error.key or "model.device", error.message, error.hint or "")
    if facts.cluster is None:
        return
    wanted = max(facts.fleet.gpus, int(facts.device.startswith("cuda")))
    if wanted > facts.cluster.gpus:
        yield Finding(
            "error",
            "spark.executor.resource.gpu.amount" if facts.fleet.gpus else "model.device",
            f"an executor needs {wanted} GPUs and a node of the cluster has {facts.cluster.gpus}",
            "no executor could start; model.device: cpu runs without",
        )


def _cores(facts: Facts) -> Iterator[Finding]:
    cpus, cores = facts.settings.whole("spark.task.cpus", 1), facts.fleet.cores
    if not cpus or (cores is not None and cpus > cores):
        yield Finding(
            "error",
            "spark.task.cpus",
            f"a task needs {cpus} cores and an executor has {cores}",
            "at least 1 and at most spark.executor.cores",
        )
    if cores is not None and facts.cluster is not None and cores > facts.cluster.cores:
        yield Finding(
            "error",
            "spark.executor.cores",
            f"an executor needs {cores} cores and a node of the cluster has {facts.cluster.cores}",
            "no executor could start: lower it",
        )


def _dynamic(facts: Facts) -> Iterator[Finding]:
    settings = facts.settings
    if not settings.flag("spark.dynamicAllocation.enabled", default=False):
        return
    moves = settings.flag("spark.decommission.enabled", default=False) and settings.flag(
        "spark.storage.decommission.shuffleBlocks.enabled", default=True
    )
    tracks = settings.flag("spark.dynamicAllocation.shuffleTracking.enabled", default=True)
    if not (moves or tracks or settings.flag("spark.shuffle.service.enabled", default=False)):
        yield Finding(
            "error",
            "spark.dynamicAllocation.shuffleTracking.enabled",
            "dynamic allocation would lose shuffled data with its executors, so Spark refuses it",
            "set it to true, or spark.decommission.enabled",
        )
    least = settings.whole("spark.dynamicAllocation.minExecutors", 0)
    if facts.fleet.most is not None and facts.fleet.most < max(1, least):
        yield Finding(
            "error",
            "spark.dynamicAllocation.maxExecutors",
            f"at most {facts.fleet.most} executors, at least {max(1, least)}",
            "raise it",
        )


def _failures(facts: Facts) -> Iterator[Finding]:
    settings, key = facts.settings, "spark.task.maxFailures"
    if facts.fleet.manager == "local":
        if facts.submitted and "," not in facts.master:
            yield Finding(
                "warning", "spark.master", "a local master ends the job at the first failed task", "local[*,4]"
            )
        return
    attempts = settings.whole(key, 4)
    if attempts < 2:
        yield Finding("warning", key, "a lost machine, or one image that kills its process, ends the job", "8")
    on_node = settings.whole("spark.excludeOnFailure.task.maxTaskAttemptsPerNode", 2)
    if settings.flag("spark.excludeOnFailure.enabled", default=False) and on_node >= attempts:
        yield Finding(
            "error",
            "spark.excludeOnFailure.task.maxTaskAttemptsPerNode",
            f"{on_node} attempts on one node and {attempts} in all: Spark refuses that, one bad node could end the job",
            f"less than {key}",
        )


def _kryo(facts: Facts) -> Iterator[Finding]:
    key = "spark.kryoserializer.buffer.max"
    largest = facts.settings.size(key, "64m")
    start = facts.settings.size("spark.kryoserializer.buffer", "64k", 1024)
    if largest >= KRYO_LIMIT or start > largest:
        yield Finding("error", key, "Spark refuses it", "less than 2048m, and at least spark.kryoserializer.buffer")
