"""Builds plans and batches for the pure chain, with the fake runtime: no Spark, no framework."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from PIL import Image

from sparkinfer.core.model_spec import Artifact, ModelSpec, PostprocessSpec
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.core.spec import BatchSpec
from sparkinfer.executor.plan import TaskPlan
from sparkinfer.executor.task import run_task

__all__ = ["RAW", "batch", "calls", "fake_plan", "png_of", "run"]

RAW = PreprocessSpec(resize=None, crop=(8, 8), mean=(0.0,), std=(1.0,), rescale=1.0)
"""No resizing and no arithmetic: the model sees the pixel values 0 to 255."""


def png_of(*colour: int, size: tuple[int, int] = (8, 8)) -> bytes:
    """A lossless picture of one colour."""
    out = io.BytesIO()
    Image.new("RGB", size, colour).save(out, "PNG")
    return out.getvalue()


def fake_plan(folder: Path, *, size: int | str = 4, **options: Any) -> TaskPlan:
    """A plan for a fake model of three classes; `options` go into the model file or, by their name, into the plan."""
    plan_keys = {k: options.pop(k) for k in list(options) if k in TaskPlan.__dataclass_fields__}
    options.setdefault("log", str(folder / "calls.jsonl"))
    content = json.dumps({"num_classes": 3, **options}).encode()
    values: dict[str, Any] = {
        "model": ModelSpec(path="m.fake", format="fake"),
        "preprocess": RAW,
        "artifact": Artifact(digest=hashlib.sha256(content).hexdigest(), size=len(content), suffix=".fake"),
        "source": lambda: content,
        "num_classes": 3,
        "postprocess": PostprocessSpec(activation="none", top_k=2, check=False),
        "batch": BatchSpec(size=size),
        "labels": ("red", "green", "blue"),
    }
    return TaskPlan(**{**values, **plan_keys})


def batch(*contents: bytes | None, first: int = 0) -> pa.RecordBatch:
    """An input batch; paths are p0, p1, ... counted from `first`."""
    paths = [f"p{first + i}" for i in range(len(contents))]
    return pa.RecordBatch.from_arrays(
        [pa.array(paths, pa.string()), pa.array(contents, pa.binary())], names=["path", "content"]
    )


def run(plan: TaskPlan, *batches: pa.RecordBatch) -> list[dict[str, Any]]:
    """All output rows of one task."""
    return [row for out in run_task(iter(batches), plan) for row in out.to_pylist()]


def calls(folder: Path, event: str) -> list[int]:
    """Rows of each call that the fake model logged."""
    log = folder / "calls.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [line["rows"] for line in lines if line["event"] == event]
