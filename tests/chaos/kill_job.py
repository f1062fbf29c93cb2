"""The job of the kill campaign: small photographs, some of them damaged, a model that takes its time; its result."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import yaml
from PIL import Image

__all__ = ["BATCH", "Difference", "Job", "compare", "leftovers", "make_photos", "rows_of"]

BATCH = 4
"""Images per model call."""

_EVERY_BAD = 9
"""One file of so many is damaged."""

_SIZE = 64
_COMPARED = ["path", "predicted_class_idx", "label", "confidence", "error_stage", "error_code"]


def make_photos(originals: list[Image.Image], folder: Path, count: int) -> None:
    """Writes `count` small JPEG and PNG files: pieces of the originals, every ninth one damaged."""
    folder.mkdir(parents=True)
    for number in range(count):
        original = originals[number % len(originals)]
        left = number * 37 % max(1, original.width - _SIZE)
        top = number * 53 % max(1, original.height - _SIZE)
        piece = original.crop((left, top, left + _SIZE, top + _SIZE)).convert("RGB")
        kind = "PNG" if number % 3 == 0 else "JPEG"
        file = io.BytesIO()
        piece.save(file, kind)
        content = file.getvalue()
        if number % _EVERY_BAD == 0:
            content = [b"", content[: len(content) // 2], b"no picture" * 20][number // _EVERY_BAD % 3]
        (folder / f"{number:05d}.{kind.lower()}").write_bytes(content)


@dataclass(frozen=True)
class Job:
    """One output of its own.

    Attributes:
        folder: for job file, model, log of the model, output, checkpoint, event log.
        photos: the input.
        snapshot: files in one snapshot; None for a plain job without `resume`.
        latency: seconds of the model for `BATCH` images.
    """

    folder: Path
    photos: Path
    snapshot: int | None
    latency: float

    @property
    def file(self) -> Path:
        """The job file."""
        return self.folder / "job.yaml"

    @property
    def calls(self) -> Path:
        """What the model logs."""
        return self.folder / "calls.jsonl"

    @property
    def output(self) -> Path:
        """The prediction table."""
        return self.folder / "out" / "predictions"

    @property
    def source(self) -> str:
        """The input, as the job file names it."""
        return str(self.photos)

    @property
    def sink(self) -> str:
        """The output, likewise."""
        return str(self.output)

    @property
    def checkpoint(self) -> str:
        """The checkpoint, likewise."""
        return str(self.folder / "check")

    @property
    def events(self) -> Path:
        """Spark's event logs, one for each start of the driver."""
        return self.folder / "events"

    def write(self, master: str) -> None:
        """Writes the job file and the model."""
        self.events.mkdir(parents=True)
        model = {
            "num_classes": 3,
            "labels": ["red", "green", "blue"],
            "log": str(self.calls),
            "latency_s": self.latency,
        }
        (self.folder / "colours.fake").write_text(json.dumps(model))
        spec: dict[str, Any] = {
            "name": "kills",
            "source": {"images": self.source},
            "model": {"path": str(self.folder / "colours.fake")},
            "batch": {"size": BATCH},
            "preprocess": {"resize": None, "crop": [32, 32]},
            # As README says of a job that is run again: without snapshots the table may be there already.
            "sink": {"path": self.sink, **({"mode": "overwrite"} if self.snapshot is None else {})},
            "spark": {"master": master},
        }
        if self.snapshot is not None:
            spec["resume"] = {"checkpoint": self.checkpoint, "snapshot_every": f"{self.snapshot} files"}
        self.file.write_text(yaml.safe_dump(spec))


Rows = list[tuple[Any, ...]]


def rows_of(output: Path) -> Rows:
    """The prediction table as pyarrow reads it: path first, then what must not depend on kills."""
    table = ds.dataset(output, format="parquet", partitioning="hive").to_table(_COMPARED)
    return list(zip(*(table[name].to_pylist() for name in _COMPARED), strict=True))


def leftovers(output: Path) -> list[str]:
    """What a finished output must not have in it or beside it: anything that was written aside."""
    return sorted(
        str(path.relative_to(output.parent))
        for path in output.parent.rglob("*")
        if path.name.endswith((".new", ".old", ".alive", ".retried"))
        or path.name.startswith(("_temporary", ".spark-staging"))
    )


@dataclass(frozen=True)
class Difference:
    """A table against the undisturbed one, rows."""

    lost: int
    doubled: int
    different: int

    @property
    def total(self) -> int:
        """0 when they are the same."""
        return self.lost + self.doubled + self.different


def compare(rows: Rows, undisturbed: Rows) -> Difference:
    """Counts the paths that are missing, those that are there again, and those with other values or unknown ones."""
    expected = {path: values for path, *values in undisturbed}
    counts = Counter(path for path, *_ in rows)
    return Difference(
        lost=len(expected.keys() - counts.keys()),
        doubled=sum(count - 1 for count in counts.values()),
        different=sum(expected.get(path) != values for path, *values in rows),
    )
