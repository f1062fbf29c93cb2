"""Tiny models in every format, made on the spot, each with a reference that does not go through our code."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torchvision
from onnx import TensorProto, helper, numpy_helper

from sparkinfer.core.model_spec import ModelSpec
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.core.protocols import Device, LoadRequest, Runtime
from sparkinfer.core.registry import create_runtime

SIDE = 32
CLASSES = 5
FILTERS = 4


@dataclass(frozen=True)
class Weights:
    """Of conv 3x3 stride 2 -> relu -> global mean -> linear, in float32."""

    kernel: Any
    bias: Any
    matrix: Any
    offset: Any


@pytest.fixture(scope="session")
def weights() -> Weights:
    rng = np.random.default_rng(7)
    return Weights(
        kernel=rng.normal(0, 0.3, (FILTERS, 3, 3, 3)).astype(np.float32),
        bias=rng.normal(0, 0.1, FILTERS).astype(np.float32),
        matrix=rng.normal(0, 1, (CLASSES, FILTERS)).astype(np.float32),
        offset=rng.normal(0, 1, CLASSES).astype(np.float32),
    )


@pytest.fixture(scope="session")
def features(weights) -> Callable[[Any], Any]:
    """The reference in float64 numpy: [n, 3, h, w] to [n, FILTERS]."""

    def run(batch):
        windows = np.lib.stride_tricks.sliding_window_view(batch.astype(np.float64), (3, 3), axis=(2, 3))
        maps = np.einsum("nchwij,fcij->nfhw", windows[:, :, ::2, ::2], weights.kernel.astype(np.float64))
        return np.maximum(maps + weights.bias[:, None, None], 0).mean(axis=(2, 3))

    return run


@pytest.fixture(scope="session")
def logits(weights, features) -> Callable[[Any], Any]:
    """The reference in float64 numpy: [n, 3, h, w] to [n, CLASSES]."""
    return lambda batch: features(batch) @ weights.matrix.astype(np.float64).T + weights.offset


class TinyNet(torch.nn.Module):
    """The same network in torch; gives logits, or (logits, features)."""

    def __init__(self, weights: Weights, output: str = "logits") -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, FILTERS, 3, stride=2)
        self.fc = torch.nn.Linear(FILTERS, CLASSES)
        self.output = output
        values = {"conv.weight": weights.kernel, "conv.bias": weights.bias}
        values |= {"fc.weight": weights.matrix, "fc.bias": weights.offset}
        self.load_state_dict({name: torch.tensor(value) for name, value in values.items()})

    def forward(self, x):
        features = torch.relu(self.conv(x)).mean((2, 3))
        logits = self.fc(features)
        if self.output == "tuple":
            return logits, features
        if self.output == "dict":
            return {"pooled": features, "logits": logits}
        return logits


def save_torchscript(module: torch.nn.Module, example: torch.Tensor, path: Path) -> Path:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit", FutureWarning)
        traced = torch.jit.trace(module.eval(), example, strict=False)
        torch.jit.save(traced, path)
    return path


@pytest.fixture(scope="session")
def save_onnx(weights) -> Callable[..., Path]:
    """Writes the network as ONNX with onnx.helper; the keywords bend it."""

    def save(
        path: Path,
        *,
        batch: int | str = "batch",
        dtype: int = TensorProto.FLOAT,
        shape: tuple[int | str, ...] = (3, SIDE, SIDE),
        metadata: dict[str, str] | None = None,
        second_input: bool = False,
        flatten: bool = True,
    ) -> Path:
        kind = helper.tensor_dtype_to_np_dtype(dtype)
        constants = {
            "kernel": weights.kernel,
            "bias": weights.bias,
            "matrix": weights.matrix.T,
            "offset": weights.offset,
        }
        nodes = [
            helper.make_node("Conv", ["input", "kernel", "bias"], ["maps"], strides=[2, 2]),
            helper.make_node("Relu", ["maps"], ["active"]),
            helper.make_node("GlobalAveragePool", ["active"], ["pooled"]),
            helper.make_node("Flatten", ["pooled"], ["features"]),
            helper.make_node("MatMul", ["features", "matrix"], ["product"]),
            helper.make_node("Add", ["product", "offset"], ["logits"]),
        ]
        inputs = [helper.make_tensor_value_info("input", dtype, [batch, *shape])]
        outputs = [
            helper.make_tensor_value_info("pooled", dtype, [batch, FILTERS, 1, 1]),
            helper.make_tensor_value_info("logits", dtype, [batch, CLASSES]),
        ]
        if not flatten:
            nodes, outputs = nodes[:3], outputs[:1]
        if second_input:
            inputs.append(helper.make_tensor_value_info("mask", dtype, [batch, 1]))
            nodes[-1] = helper.make_node("Add", ["product", "mask"], ["logits"])
        used = {name for node in nodes for name in node.input}
        graph = helper.make_graph(
            nodes,
            "tiny",
            inputs,
            outputs,
            [numpy_helper.from_array(value.astype(kind), name) for name, value in constants.items() if name in used],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        helper.set_model_props(model, metadata or {})
        onnx.save(model, path)
        return path

    return save


@pytest.fixture(scope="session")
def preprocess() -> PreprocessSpec:
    return PreprocessSpec(resize=None, crop=SIDE)


@dataclass(frozen=True)
class Case:
    """One runtime with one model, and what it should answer."""

    format: str
    path: Path
    scores: Callable[[Any], Any]
    embedding_name: str
    embedding: Callable[[Any], Any]
    preprocess: PreprocessSpec
    arch: str | None = None

    def request(self, **changes: Any) -> LoadRequest:
        preprocess = self.preprocess.model_copy(update=changes.pop("preprocess", {}))
        model = ModelSpec(path=str(self.path), arch=self.arch, **changes.pop("model", {}))
        return LoadRequest(**{"path": str(self.path), "model": model, "preprocess": preprocess, **changes})

    def load(self, **changes: Any) -> Runtime:
        runtime = create_runtime(self.format)
        runtime.load(self.request(**changes))
        return runtime

    def batch(self, rows: int, seed: int = 0) -> Any:
        return np.random.default_rng(seed).normal(size=(rows, 3, SIDE, SIDE)).astype(np.float32)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def onnx_case(folder, save_onnx, features, logits, preprocess) -> Case:
    return Case("onnx", save_onnx(folder / "tiny.onnx"), logits, "pooled", features, preprocess)


@pytest.fixture(scope="session")
def torchscript_case(folder, weights, features, logits, preprocess) -> Case:
    path = save_torchscript(TinyNet(weights, "tuple"), torch.zeros(2, 3, SIDE, SIDE), folder / "tiny.pt")
    return Case("torchscript", path, logits, "1", features, preprocess)


@pytest.fixture(scope="session")
def torch_case(folder, preprocess) -> Case:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = torchvision.models.squeezenet1_1(num_classes=CLASSES).eval()
    torch.save(module.state_dict(), folder / "squeezenet.pth")

    def run(layer, batch):
        with torch.no_grad():
            return layer(torch.tensor(batch)).flatten(1).numpy()

    return Case(
        "torch",
        folder / "squeezenet.pth",
        lambda batch: run(module, batch),
        "features.3",
        lambda batch: run(module.features[:4], batch),
        preprocess,
        arch="squeezenet1_1",
    )


@pytest.fixture(scope="session")
def fake_case(folder, preprocess) -> Case:
    path = folder / "tiny.fake"
    path.write_text(json.dumps({"num_classes": CLASSES, "input": {"shape": [None, 3, SIDE, SIDE]}}))

    def scores(batch):
        red, green, blue = batch.astype(np.float64).mean(axis=(2, 3)).T
        return np.stack([red, green, blue, red / 2, green / 2], axis=1)

    return Case("fake", path, scores, "channel_means", lambda batch: batch.mean(axis=(2, 3)), preprocess)


@pytest.fixture(params=["onnx", "torchscript", "torch", "fake"])
def case(request):
    return request.getfixturevalue(f"{request.param}_case")


@pytest.fixture
def device_that_is_nowhere() -> Device:
    return Device("cuda", 99)
