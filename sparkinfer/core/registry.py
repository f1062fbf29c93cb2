"""Which class opens which model format. Names only: nothing is imported until a model is opened. Both sides.

Open to other packages through the entry-point group `sparkinfer.runtimes` (name = format, value = "module:attr").
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import Any

from sparkinfer.core.errors import MissingExtraError, ModelError, SpecError
from sparkinfer.core.protocols import Runtime

__all__ = ["ENTRY_POINT_GROUP", "create_runtime", "detect_format", "formats", "load_attribute"]

ENTRY_POINT_GROUP = "sparkinfer.runtimes"

_BUILT_IN = {
    "onnx": "sparkinfer.runtimes.onnx_runtime:OnnxRuntime",
    "torchscript": "sparkinfer.runtimes.torchscript:TorchScriptRuntime",
    "torch": "sparkinfer.runtimes.torch_eager:TorchEagerRuntime",
    "fake": "sparkinfer.runtimes.fake:FakeRuntime",
}

_EXTRA_OF_PACKAGE = {
    "onnxruntime": "onnx",
    "onnx": "onnx",
    "torch": "torch",
    "torchvision": "torch",
    "safetensors": "torch",
}

_FORMAT_OF_SUFFIX = {
    ".onnx": "onnx",
    ".safetensors": "torch",
    ".pth": "torch",
    ".torchscript": "torchscript",
    ".ts": "torchscript",
    ".fake": "fake",
}


def formats() -> dict[str, str]:
    """Every known format and its "module:attr"; entry points may add formats, not replace ours."""
    found = {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}
    return {**found, **_BUILT_IN}


def _public_formats() -> list[str]:
    return sorted(set(formats()) - {"fake"})  # that one is for tests


def detect_format(name: str, head: bytes, *, arch: str | None) -> str:
    """Says which format a model file has.

    Args:
        name: file name; its suffix decides where it can.
        head: the first 4 kB or more. A TorchScript archive and a pickled state_dict are both zip files with the suffix
            `.pt` or `.pth`; only TorchScript holds `constants.pkl` or a `code/` folder near its start.
        arch: the spec's architecture; with one, a `.pt` is a state_dict.

    Raises:
        ModelError: when nothing fits.
    """
    suffix = "." + name.rsplit(".", 1)[-1].lower() if "." in name else ""
    if suffix in (".pt", ".pth"):
        return "torch" if arch else "torchscript"
    if suffix in _FORMAT_OF_SUFFIX:
        return _FORMAT_OF_SUFFIX[suffix]
    if suffix.lstrip(".") in formats():
        return suffix.lstrip(".")
    raise ModelError(
        f"cannot tell the format of {name!r} ({len(head)} bytes seen)",
        key="model.format",
        allowed=_public_formats(),
        hint="set model.format",
    )


def create_runtime(format_name: str) -> Runtime:
    """A new, unloaded runtime for a format. Imports its framework here.

    Raises:
        SpecError: the format is unknown.
        MissingExtraError: its package is not installed; names the pip line.
    """
    known = formats()
    if format_name not in known:
        raise SpecError(f"unknown format {format_name!r}", key="model.format", allowed=_public_formats())
    runtime = load_attribute(known[format_name])()
    if not isinstance(runtime, Runtime):
        raise SpecError(f"{known[format_name]} is not a sparkinfer Runtime", key="model.format")
    return runtime


def load_attribute(reference: str) -> Any:
    """Imports "module:attr", which may need a framework.

    Raises:
        MissingExtraError: the framework is not installed; names the pip line.
    """
    module, _, attribute = reference.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in _EXTRA_OF_PACKAGE:
            raise MissingExtraError(package, extra=_EXTRA_OF_PACKAGE[package]) from error
        raise
