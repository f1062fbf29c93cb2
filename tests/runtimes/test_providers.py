"""Execution providers: an ordered list, and never another one without a word."""

from __future__ import annotations

import onnxruntime as ort
import pytest

from sparkinfer.core.errors import DeviceError
from sparkinfer.core.model_spec import ModelSpec
from sparkinfer.core.protocols import Device
from sparkinfer.runtimes import onnx_runtime

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
def test_one_that_this_build_lacks_is_named(onnx_case, name):
    with pytest.raises(DeviceError) as caught:
        onnx_case.load(model={"providers": (name,)})
    assert onnx_runtime._PROVIDERS[name] in caught.value.render()
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
