"""What the checks of a plan look at, and what they find. Driver side; plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sparkinfer.driver.planning.fleet import Fleet
from sparkinfer.driver.planning.memory import Part
from sparkinfer.driver.planning.profile import Settings
from sparkinfer.driver.planning.resource_rule import Cluster

__all__ = ["Facts", "Finding"]


@dataclass(frozen=True)
class Finding:
    """Something that does not fit.

    Attributes:
        level: error (it cannot work) or warning.
        setting: the setting of Spark, or the key of the job.
        message: what is wrong.
        hint: what to do.
    """

    level: Literal["error", "warning"]
    setting: str
    message: str
    hint: str


@dataclass(frozen=True)
class Facts:
    """What is known of job, settings and machines.

    Attributes:
        settings: of the application.
        master: its URL; "" where nothing names one.
        fleet: what they make of it.
        device: `model.device`, resolved as far as the spec says.
        on_gpu: the model will run on GPUs.
        spark_version: of this machine's pyspark.
        heap: of one executor, what it needs.
        beside: beside its heap, what it needs.
        partitions: tasks of the input (of one snapshot); None where only running would tell.
        rows: of the input; None where that is not known.
        cluster: None where it is not known.
        machine: bytes of this machine's memory.
        submitted: spark-submit will make the session, not we.
        local: key of the job -> its path on this machine, for each that is one.
    """

    settings: Settings
    master: str
    fleet: Fleet
    device: str
    on_gpu: bool
    spark_version: str
    heap: Part
    beside: list[Part]
    partitions: int | None
    rows: int | None
    cluster: Cluster | None
    machine: int
    submitted: bool
    local: Mapping[str, str]
