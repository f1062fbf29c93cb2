"""What every contestant is told, and how it tells when a job was done. Standard library only."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

__all__ = ["OUTPUT_COLUMNS", "Job", "Mark", "Recipe", "RunJob", "contend"]

OUTPUT_COLUMNS = ("path", "predicted_class_idx", "confidence")
"""What every job writes, as Parquet: the image's name, its best class, and that class's softmax."""


@dataclass(frozen=True)
class Recipe:
    """How a picture becomes a model input, in the words of torchvision's transforms.

    Attributes:
        resize: shorter side, pixels; crop: centre square, pixels.
        interpolation: Pillow's name of the filter, lower case.
        mean, std: per RGB channel, of values in [0, 1].
    """

    resize: int
    crop: int
    interpolation: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]


@dataclass(frozen=True)
class Job:
    """One contestant's work in one round: `jobs` equal jobs in one process.

    Attributes:
        images: folder of Parquet files with `path` and `content`, or of JPEG files.
        stored: parquet or folder: which of the two.
        workers: processes (or Spark tasks) side by side; each has one intra-op thread.
        batch_size: images per model call.
        output: folder; job N writes Parquet under `output/N`, marks go to `output/marks.jsonl`.
    """

    images: str
    stored: str
    onnx: str
    torchscript: str
    recipe: Recipe
    workers: int
    batch_size: int
    output: str
    jobs: int = 3

    def save(self, path: Path) -> None:
        """Writes the job as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1), "utf-8")

    @classmethod
    def load(cls, path: Path) -> Job:
        """Reads what `save` wrote."""
        values = json.loads(path.read_text("utf-8"))
        recipe = values.pop("recipe")
        recipe |= {"mean": tuple(recipe["mean"]), "std": tuple(recipe["std"])}
        return cls(recipe=Recipe(**recipe), **values)

    @property
    def marks(self) -> Path:
        """Where the marks are."""
        return Path(self.output) / "marks.jsonl"


@dataclass(frozen=True)
class Mark:
    """A finished job. Times are `time.monotonic()`, which on Linux all processes share."""

    job: int
    started: float
    ended: float

    @classmethod
    def read(cls, path: Path) -> list[Mark]:
        """The marks of a contestant; none when it did not finish a job."""
        if not path.exists():
            return []
        return [cls(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]


RunJob = Callable[[Path], None]
"""Runs one whole job in the open session: reads the images, writes its predictions as Parquet into a new folder."""


def contend(open_session: Callable[[Job], AbstractContextManager[RunJob]]) -> None:
    """Main program of a contestant: opens its session and runs every job in it, one after the other."""
    job = Job.load(Path(sys.argv[1]))
    with open_session(job) as run:
        for number in range(job.jobs):
            started = time.monotonic()
            run(Path(job.output) / str(number))
            mark = Mark(job=number, started=started, ended=time.monotonic())
            with job.marks.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(mark)) + "\n")
