"""What sharding an input gives: data for the rest of the driver."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyspark.sql import DataFrame, SparkSession

from sparkinfer.driver.frames import settings

__all__ = ["GOOD", "Sharding", "tasks"]

GOOD = 1.2
"""A split is good as it is when its heaviest task carries at most so many times the mean."""


@dataclass(frozen=True)
class Sharding:
    """An input, spread over tasks.

    Attributes:
        content: the columns that the model needs, in tasks as decided.
        reason: what was done and why, in a sentence for a person.
        partitions: number of tasks; None where only running the query would tell.
        heaviest_over_mean: bytes of the heaviest task over the mean; of rows where bytes are not known; None where
            neither is.
        conf: session settings that must hold while Spark plans the action on `content`; None unsets.
    """

    content: DataFrame
    reason: str
    partitions: int | None
    heaviest_over_mean: float | None = None
    conf: Mapping[str, str | None] = field(default_factory=dict)

    @contextmanager
    def applied(self, spark: SparkSession) -> Iterator[None]:
        """Holds `conf` around the action that runs `content`, and puts back what was set before."""
        with settings(spark, self.conf):
            yield


def tasks(count: int) -> str:
    """A number of tasks in words."""
    return "1 task" if count == 1 else f"{count:,} tasks"
