"""Execution providers: an ordered list, and never another one without a word."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from sparkinfer.core.errors import DeviceError
from sparkinfer.core.model_spec import ModelSpec
from sparkinfer.core.protocols import Device
from sparkinfer.runtimes import onnx_runtime
from sparkinfer.runtimes._onnx_providers import PROVIDERS, check_providers

EVERYTHING = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "OpenVINOExecutionProvider", "CPUExecutionProvider"]


def names(case, monkeypatch, providers, device) -> list[str]:
    monkeypatch.setattr(ort, "get_available_providers", lambda: EVERYTHING)
    found = onnx_runtime._providers(case.request(model={"providers": providers}, device=device))
    return [entry if isinstance(entry, str) else entry[0] for entry in found]


def test_the_order_is_the_specs_and_the_cpu_comes_last(onnx_case, monkeypatch):
    gpu = Device("cuda", 1)
    assert names(onnx_case, monkeypatch, ("tensorrt", "cuda"), gpu) == [EVERYTHING[0], EVERYTHING[1], EVERYTHING[3]]
    assert names(onnx_case, monkeypatch, (), gpu) == [EVERYTHING[1], EVERYTHING[3]]
    assert names(onnx_case, monkeypatch, ("openvino",), Device("cpu")) == [EVERYTHING[2], EVERYTHING[3]]
    assert names(onnx_case, monkeypatch, ("cuda", "cpu"), Device("cpu")) == [EVERYTHING[3]]


def test_each_gets_its_gpu(onnx_case, monkeypatch):
    monkeypatch.setattr(ort, "get_available_providers", lambda: EVERYTHING)
    request = onnx_case.request(model={"providers": ("tensorrt", "cuda")}, device=Device("cuda", 1))
    options = dict(entry for entry in onnx_runtime._providers(request) if not isinstance(entry, str))
    assert {name: values["device_id"] for name, values in options.items()} == {EVERYTHING[0]: 1, EVERYTHING[1]: 1}


@pytest.mark.parametrize("name", ["rocm", "openvino"])
def test_a_list_with_the_cpu_does_without_one_that_this_build_lacks_and_says_so(onnx_case, logits, caplog, name):
    runtime = onnx_case.load(model={"providers": (name, "cpu")})
    assert runtime._session.get_providers() == [EVERYTHING[3]]
    assert f"{name} cannot be used here; using ['CPUExecutionProvider']" in caplog.text
    batch = np.random.default_rng(0).normal(size=(2, 3, 32, 32)).astype(np.float32)
    np.testing.assert_allclose(runtime.infer(batch).scores, logits(batch), atol=1e-4)


def test_nothing_is_said_of_a_list_that_is_used_as_it_is(onnx_case, caplog):
    onnx_case.load(model={"providers": ("cpu",)})
    assert not caplog.records


@pytest.mark.parametrize("name", ["rocm", "openvino"])
def test_a_list_is_checked_without_a_model(name):
    with pytest.raises(DeviceError) as caught:
        check_providers([name], Device("cpu"))
    assert caught.value.key == "model.providers"
    assert set(caught.value.allowed) == {"tensorrt", "cuda", "rocm", "openvino", "cpu"} - {
        key for key, value in PROVIDERS.items() if value not in ort.get_available_providers()
    }
    assert f"[{name}, cpu]" in caught.value.hint
    check_providers([name, "cpu"], Device("cpu"))
    check_providers(["tensorrt", "cuda", "cpu"], Device("cpu"))


@pytest.mark.parametrize("name", ["rocm", "openvino"])
def test_one_that_this_build_lacks_is_named(onnx_case, name):
    with pytest.raises(DeviceError) as caught:
        onnx_case.load(model={"providers": (name,)})
    assert (caught.value.key, name in caught.value.message) == ("model.providers", True)
    assert "CPUExecutionProvider" in caught.value.render()


@pytest.mark.parametrize(
    ("device", "providers", "wanted"),
    [
        ("auto", (), "auto"),
        ("auto", ("cuda",), "cuda"),
        ("auto", ("tensorrt", "cuda"), "cuda"),
        ("auto", ("cuda", "cpu"), "auto"),
        ("auto", ("openvino",), "auto"),
        ("cuda:1", ("cuda",), "cuda:1"),
    ],
)
def test_a_list_without_the_cpu_leaves_auto_no_choice(device, providers, wanted):
    assert ModelSpec(path="m", device=device, providers=providers).wanted_device == wanted
