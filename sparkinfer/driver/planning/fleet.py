"""Executors and tasks at once, out of Spark's settings alone. Driver side; pure arithmetic, no session."""

from __future__ import annotations

from dataclasses import dataclass

from sparkinfer.driver.planning.profile import Settings
from sparkinfer.driver.planning.resource_rule import RESERVED_CORES, Cluster
from sparkinfer.driver.spark.gpu_requests import EXECUTOR_GPUS, TASK_GPUS
from sparkinfer.driver.spark.masters import check_master, local_cores, manager_of
from sparkinfer.driver.spark.resources import task_slots

__all__ = ["Fleet", "fleet_of"]

LEAST_PARALLELISM = 2
"""What `CoarseGrainedSchedulerBackend.defaultParallelism` gives while no executor is there."""


@dataclass(frozen=True)
class Fleet:
    """Who runs the tasks.

    Attributes:
        manager: local, standalone, yarn, kubernetes, or other.
        executors: at the start; None where only the cluster knows. A local master's is the driver itself.
        most: executors with dynamic allocation; None where there is no limit.
        cores: of one executor; None where only the cluster knows.
        gpus: of one executor.
        slots: tasks at once on one executor; None where only the cluster knows.
        parallelism: tasks at once in the whole application, as Spark will count them when the input is cut.
        told: whether `parallelism` is certain: set, or the executors are all there when the input is cut.
    """

    manager: str
    executors: int | None
    most: int | None
    cores: int | None
    gpus: int
    slots: int | None
    parallelism: int
    told: bool

    @property
    def total_slots(self) -> int | None:
        """Tasks at once with all executors there; None where only the cluster knows."""
        count = self.most if self.most is not None else self.executors
        return None if count is None or self.slots is None else count * self.slots


def fleet_of(settings: Settings, master: str, cluster: Cluster | None = None, running: int | None = None) -> Fleet:
    """Reads the settings as Spark will.

    Args:
        settings: of the application.
        master: its URL; "" where nothing names one.
        cluster: bounds the executors where it is known.
        running: default parallelism of the session that will run the job, where it runs already.

    Raises:
        SpecError: a value that Spark would not take.
    """
    check_master(master)
    manager = manager_of(master)
    cores = _cores(settings, manager, master, cluster)
    most, executors = _executors(settings, manager, cores, cluster)
    gpus, wanted = settings.whole(EXECUTOR_GPUS, 0), settings.number(TASK_GPUS, 0)
    if manager == "other" and not gpus and wanted:  # Databricks gives executors their GPUs by itself
        gpus = max(1, int(wanted))
    cpus = settings.whole("spark.task.cpus", 1)
    slots = task_slots(settings.values, cores) if cores and cpus else None
    told, parallelism = True, LEAST_PARALLELISM
    if running is not None:
        parallelism = running
    elif "spark.default.parallelism" in settings:
        parallelism = settings.whole("spark.default.parallelism", LEAST_PARALLELISM)
    elif manager == "local":
        parallelism = local_cores(master)
    else:
        told = executors is not None and cores is not None and not _is_dynamic(settings)
        if executors is not None and cores is not None:
            parallelism = max(LEAST_PARALLELISM, executors * cores)
    return Fleet(manager, executors, most, cores, gpus, slots, parallelism, told)


def _is_dynamic(settings: Settings) -> bool:
    return settings.flag("spark.dynamicAllocation.enabled", default=False)


def _cores(settings: Settings, manager: str, master: str, cluster: Cluster | None) -> int | None:
    if manager == "local":
        return local_cores(master)
    if "spark.executor.cores" in settings:
        return settings.whole("spark.executor.cores", 1)
    if manager in {"yarn", "kubernetes"}:
        return 1
    # A standalone executor takes all that its Worker offers.
    return None if cluster is None else max(1, cluster.cores - RESERVED_CORES)


def _executors(
    settings: Settings, manager: str, cores: int | None, cluster: Cluster | None
) -> tuple[int | None, int | None]:
    """The most, and those to start with."""
    if manager == "local":
        return 1, 1
    instances = settings.whole("spark.executor.instances", 0) if "spark.executor.instances" in settings else None
    if _is_dynamic(settings):
        names = ("minExecutors", "initialExecutors")
        wanted = [settings.whole(f"spark.dynamicAllocation.{name}", 0) for name in names]
        limit = "spark.dynamicAllocation.maxExecutors"
        most = settings.whole(limit, 0) if limit in settings else None
        return most, max(*wanted, instances or 0)
    if instances is None and cores is not None:
        if "spark.cores.max" in settings:
            instances = settings.whole("spark.cores.max", 0) // cores
        elif manager == "standalone" and cluster is not None:
            instances = cluster.nodes * max(1, (cluster.cores - RESERVED_CORES) // cores)
        elif manager in {"yarn", "kubernetes"}:
            instances = 2  # their default
    return instances, instances
