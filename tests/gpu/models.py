"""ResNet-50 in both formats, real JPEGs, and the chain on a device: what the GPU tests and figures share."""

from __future__ import annotations

import hashlib
import io
import os
import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
import torchvision
from PIL import Image

from sparkinfer.core.model_spec import Artifact, ModelSpec
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.core.spec import BatchSpec
from sparkinfer.executor.inspection import inspect_model
from sparkinfer.executor.plan import TaskPlan
from sparkinfer.executor.task import run_task

__all__ = ["batches", "chain", "resnet50"]


def resnet50(folder: Path) -> dict[str, Path]:
    """Seeded random weights: what counts here is that both devices agree, and the time."""
    torch.manual_seed(0)
    model = torchvision.models.resnet50(weights=None).eval()
    paths = {"onnx": folder / "resnet50.onnx", "torchscript": folder / "resnet50.pt"}
    example = torch.zeros(2, 3, 224, 224)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(model, example), paths["torchscript"])
        torch.onnx.export(
            model, (example,), paths["onnx"], dynamo=True, dynamic_shapes=({0: torch.export.Dim("batch")},)
        )
    return paths


def batches(rows: int, size: tuple[int, int] = (500, 375)) -> Iterator[pa.RecordBatch]:
    """Distinct JPEGs of ImageNet's mean size."""
    rng = np.random.default_rng(0)
    contents = []
    for _ in range(rows):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), np.uint8)).resize(size, Image.Resampling.BICUBIC)
        out = io.BytesIO()
        coarse.save(out, "JPEG", quality=92)
        contents.append(out.getvalue())
    for start in range(0, rows, 64):
        yield pa.record_batch({"content": pa.array(contents[start : start + 64], pa.binary())})


def chain(
    path: Path,
    format_: str,
    images: Iterable[pa.RecordBatch],
    *,
    device: str,
    batch: BatchSpec | None = None,
    **model: Any,
) -> list[dict[str, Any]]:
    """All rows of the pure executor chain, with normalisation folded into the model as a job would."""
    spec = ModelSpec(path=str(path), format=format_, device=device, **model)
    request = {
        "path": str(path),
        "model": spec.model_dump(mode="json"),
        "preprocess": PreprocessSpec().model_dump(mode="json"),
        "scratch": str(path.parent),
    }
    signature, _, folding = inspect_model(request)
    content = Path(folding.path).read_bytes()
    plan = TaskPlan(
        model=spec,
        preprocess=folding.preprocess,
        inside=folding.inside,
        artifact=Artifact(digest=hashlib.sha256(content).hexdigest(), size=len(content), suffix=path.suffix),
        source=partial(Path, folding.path),
        num_classes=signature.num_classes,
        batch=batch or BatchSpec(size=64),
        keys=(),
        cores=len(os.sched_getaffinity(0)),
    )
    return [row for out in run_task(iter(images), plan) for row in out.to_pylist()]
