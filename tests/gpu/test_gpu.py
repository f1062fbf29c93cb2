"""The executor chain on a CUDA machine, without Spark: `pytest -m gpu tests/gpu`. Fails where there is no GPU.

Left out of the ordinary run: it needs an NVIDIA GPU with torch and onnxruntime-gpu. `python -m tests.gpu.throughput`
prints the figures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sparkinfer.core.spec import BatchSpec
from sparkinfer.executor import model_cache
from tests.gpu.models import batches, chain, resnet50

pytestmark = pytest.mark.gpu

ROWS = 200


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return resnet50(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def photos() -> list[Any]:
    return list(batches(ROWS))


def top1(rows: list[dict[str, Any]]) -> list[tuple[int, float]]:
    return [(row["predicted_class_idx"], row["confidence"]) for row in rows]


@pytest.mark.parametrize("format_", ["onnx", "torchscript"])
def test_the_same_as_on_the_cpu(models: dict[str, Path], photos: list[Any], format_: str) -> None:
    on_cpu = top1(chain(models[format_], format_, photos, device="cpu"))
    on_gpu = top1(chain(models[format_], format_, photos, device="cuda"))
    same = np.mean([a[0] == b[0] for a, b in zip(on_cpu, on_gpu, strict=True)])
    assert same >= 0.99  # TF32 may turn a near tie
    np.testing.assert_allclose([c for _, c in on_cpu], [c for _, c in on_gpu], atol=2e-2)


def test_half_precision_keeps_the_classes(models: dict[str, Path], photos: list[Any]) -> None:
    full = top1(chain(models["torchscript"], "torchscript", photos, device="cuda"))
    half = top1(chain(models["torchscript"], "torchscript", photos, device="cuda", precision="fp16"))
    assert np.mean([a[0] == b[0] for a, b in zip(full, half, strict=True)]) >= 0.97


def test_real_out_of_memory_halves_the_batch(models: dict[str, Path], photos: list[Any]) -> None:
    full = top1(chain(models["torchscript"], "torchscript", photos, device="cuda"))
    model_cache.evict_all()
    torch.cuda.empty_cache()
    # Room for the weights and a few images, not for two hundred.
    free, total = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(min(1.0, (total - free + (1 << 30)) / total))
    try:
        rows = chain(models["torchscript"], "torchscript", photos, device="cuda", batch=BatchSpec(size=ROWS))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert [row["error_code"] for row in rows] == [None] * ROWS
    assert np.mean([a[0] == b[0] for a, b in zip(full, top1(rows), strict=True)]) >= 0.99


def test_auto_measures_the_memory(models: dict[str, Path], photos: list[Any], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "sparkinfer.executor.batch_size")
    rows = chain(models["torchscript"], "torchscript", photos, device="cuda", batch=BatchSpec(size="auto"))
    assert len(rows) == ROWS
    assert "MB free" in caplog.text
