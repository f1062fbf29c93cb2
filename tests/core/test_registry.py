"""Formats: told by name and content, opened by name only."""

from __future__ import annotations

import pytest

from sparkinfer.core.errors import ModelError, SpecError
from sparkinfer.core.registry import create_runtime, detect_format, formats


@pytest.mark.parametrize(
    ("name", "arch", "expected"),
    [
        ("a.onnx", None, "onnx"),
        ("A.ONNX", None, "onnx"),
        ("a.pt", None, "torchscript"),
        ("a.pt", "resnet18", "torch"),
        ("a.pth", "resnet18", "torch"),
        ("a.safetensors", "resnet18", "torch"),
        ("hdfs://n/a.b/c.torchscript", None, "torchscript"),
    ],
)
def test_formats_are_told_by_name(name: str, arch: str | None, expected: str) -> None:
    assert detect_format(name, b"", arch=arch) == expected


def test_an_unknown_suffix_asks_for_the_format() -> None:
    with pytest.raises(ModelError) as caught:
        detect_format("weights.bin", b"", arch=None)
    assert "onnx" in caught.value.render()
    assert caught.value.key == "model.format"


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SpecError) as caught:
        create_runtime("caffe")
    assert set(caught.value.allowed) == set(formats()) - {"fake"}
