"""What travels from the driver to a Python worker. Everything here pickles; nothing here is live."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from sparkinfer.core.model_spec import Artifact, ModelSpec, PostprocessSpec
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.core.spec import BatchSpec
from sparkinfer.executor.taskcontext import spark_file
from sparkinfer.executor.telemetry import TelemetryTarget

__all__ = ["BroadcastSource", "LocalFileSource", "SparkFileSource", "TaskPlan"]


@dataclass(frozen=True)
class BroadcastSource:
    """Model bytes in a Spark broadcast. `broadcast` is a `pyspark.Broadcast[bytes]`; read on the executor."""

    broadcast: Any

    def __call__(self) -> bytes:
        """The bytes; pulled to the node only when its cache lacks the file."""
        value: bytes = self.broadcast.value
        return value


@dataclass(frozen=True)
class SparkFileSource:
    """A model file that Spark ships to every executor (`SparkContext.addFile`)."""

    name: str

    def __call__(self) -> Path:
        """Path of this executor's copy."""
        return spark_file(self.name)


@dataclass(frozen=True)
class LocalFileSource:
    """A model file of this node, for a process that another one starts there."""

    path: Path

    def __call__(self) -> Path:
        """The file."""
        return self.path


@dataclass(frozen=True)
class TaskPlan:
    """All that `run_task` needs, as specs.

    Attributes:
        model, preprocess, postprocess, batch: blocks of the job's spec, `preprocess` resolved.
        artifact: the model file's digest and size.
        source: gives the model's bytes, or a file that holds them, on the executor.
        num_classes: width of the scores, as inspected on the driver.
        labels: one per class, or None.
        content: name of the image bytes' column.
        keys: columns carried from input to output, in order.
        max_image_bytes: longer images become TOO_LARGE.
        inside: normalisation that the runtime applies before the model (`LoadRequest.inside`).
        cores: that one task may decode on; None asks the task (`spark.task.cpus`).
        guard: auto runs the chain in a process of its own from a task's second attempt on; always, from the first on.
        row_timeout: longest time for one row, seconds.
        counts: where a task adds its `report.Tally`: a `pyspark.Accumulator`; None tells nothing.
        telemetry: where a task sends its figures while it runs; None sends nothing.
    """

    model: ModelSpec
    preprocess: PreprocessSpec
    artifact: Artifact
    source: Callable[[], bytes | Path]
    num_classes: int
    postprocess: PostprocessSpec = field(default_factory=PostprocessSpec)
    batch: BatchSpec = field(default_factory=BatchSpec)
    labels: tuple[str, ...] | None = None
    content: str = "content"
    keys: tuple[str, ...] = ("path",)
    max_image_bytes: int = 1 << 30
    cores: int | None = None
    inside: PreprocessSpec | None = None
    guard: Literal["auto", "always"] = "auto"
    row_timeout: float = 300.0
    counts: Any = None
    telemetry: TelemetryTarget | None = None

    @property
    def cache_key(self) -> tuple[str, ...]:
        """Two plans with equal keys can share one loaded runtime in a process."""
        return (
            self.artifact.digest,
            self.model.model_dump_json(exclude={"path", "labels", "name", "version"}),
            self.preprocess.model_dump_json(),
            self.inside.model_dump_json() if self.inside else "",
            self.postprocess.embedding or "",
        )
