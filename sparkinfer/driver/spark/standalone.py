"""Asks the Master of a standalone cluster whether its Workers have the GPUs that executors need. Driver side.

No Worker with enough GPUs means no executor, and a job that waits for one for ever.
"""

from __future__ import annotations

import logging
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from sparkinfer.core.errors import SpecError
from sparkinfer.driver.spark.gpu_requests import EXECUTOR_GPUS

__all__ = ["check_workers"]

log = logging.getLogger(__name__)


def check_workers(spark: SparkSession) -> None:
    """Refuses an application whose executors need more GPUs than any Worker has.

    Does nothing where no GPUs are asked for, and with other masters: they refuse by themselves, or grow on demand.

    Raises:
        SpecError: names what the Workers have.
    """
    wanted = int(spark.conf.get(EXECUTOR_GPUS, None) or 0)
    master = spark.sparkContext.master or ""
    if not wanted or not master.startswith("spark://"):
        return
    found: dict[str, int] = {}
    for address in master.removeprefix("spark://").split(","):  # several where one stands by
        try:
            found |= _gpus_by_worker(spark, f"spark://{address}")
        except Py4JError as error:  # another Spark's Master, or none at present
            log.warning("cannot ask the Master at %s which GPUs its Workers have: %s", address, error)
            return
    if not found:
        log.warning("no Worker of %s is there yet; the job waits for one with %d GPUs", master, wanted)
    elif max(found.values()) < wanted:
        have = ", ".join(f"{worker} has {gpus}" for worker, gpus in sorted(found.items())[:5])
        raise SpecError(
            f"no Worker of {master} has {wanted} GPU{'s' if wanted > 1 else ''} for an executor: {have}",
            key=EXECUTOR_GPUS,
            allowed=[f"at most {max(found.values())}"],
            hint="start Workers with spark.worker.resource.gpu.amount and spark.worker.resource.gpu.discoveryScript "
            "(conf/gpu_discovery.sh)",
        )


def _gpus_by_worker(spark: SparkSession, master: str) -> dict[str, int]:
    """GPUs of the living Workers, by host and port, whoever holds them now.

    What the Master's own page shows, over the connection that the application has: the page may be off or elsewhere.
    """
    context: Any = spark.sparkContext
    jvm = context._jvm
    address = jvm.org.apache.spark.rpc.RpcAddress.fromSparkURL(master)
    # Not SparkEnv's: py4j looks at all methods of a class, and those of Spark 4.3's name classes that pyspark lacks.
    endpoint = context._jsc.sc().schedulerBackend().rpcEnv().setupEndpointRef(address, "Master")
    answer = jvm.java.lang.Class.forName("org.apache.spark.deploy.DeployMessages$MasterStateResponse")
    state = endpoint.askSync(
        _scala_object(jvm.org.apache.spark.deploy, "DeployMessages$RequestMasterState"),
        _scala_object(jvm.scala.reflect, "ClassTag").apply(answer),
    )
    found: dict[str, int] = {}
    for worker in state.workers():
        if worker.state().toString() == "ALIVE":
            gpus = worker.resourcesInfo().get("gpu")
            found[worker.hostPort()] = len(gpus.get().addresses()) if gpus.isDefined() else 0
    return found


def _scala_object(package: Any, name: str) -> Any:
    return getattr(getattr(package, f"{name}$"), "MODULE$")
