"""The one stage that runs the model asks Spark for GPUs, and no other stage does. Driver side."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from pyspark.resource import ResourceProfile, ResourceProfileBuilder, TaskResourceRequests
from pyspark.sql import SparkSession

from sparkinfer.driver.spark.gpu_requests import MODEL_GPUS

__all__ = ["stage_options"]


def stage_options(spark: SparkSession) -> dict[str, Any]:
    """Arguments of `DataFrame.mapInArrow` and `mapInPandas` that give their stage its GPUs.

    Returns:
        `profile`, where the session was made so that only this stage asks (`gpu_requests.place`); else nothing.
    """
    amount = spark.conf.get(MODEL_GPUS, None)
    return {"profile": _profile(spark.sparkContext.applicationId, float(amount))} if amount else {}


@lru_cache(maxsize=1)
def _profile(_application: str, gpus: float) -> ResourceProfile:
    """One for all queries of an application: Spark keeps every profile that it meets."""
    return ResourceProfileBuilder().require(TaskResourceRequests().resource("gpu", gpus)).build
