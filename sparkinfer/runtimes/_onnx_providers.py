"""ONNX Runtime's execution providers: which of them a job may and must use here. Executor side; nothing pickles."""

from __future__ import annotations

from collections.abc import Sequence

import onnxruntime as ort

from sparkinfer.core.errors import DeviceError
from sparkinfer.core.protocols import Device

__all__ = ["PROVIDERS", "check_providers", "lacking", "may_be_missing", "no_provider", "usable"]

PROVIDERS = {
    "tensorrt": "TensorrtExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "rocm": "ROCMExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "cpu": "CPUExecutionProvider",
}
"""What ONNX Runtime calls them."""

_ON_NVIDIA = ("tensorrt", "cuda")
_BUILDS = {
    "tensorrt": "onnxruntime-gpu",
    "cuda": "onnxruntime-gpu",
    "rocm": "onnxruntime-rocm",
    "openvino": "onnxruntime-openvino",
}
"""Distributions that have a provider: onnxruntime.ai/docs/execution-providers."""


def check_providers(providers: Sequence[str], device: Device) -> None:
    """Whether this build has what a list of providers asks for, on a device of this machine. Opens nothing.

    Raises:
        DeviceError: it lacks one that the list does not allow to do without.
    """
    for name in usable(providers, device):
        if name not in ort.get_available_providers():
            raise lacking(name, device, providers)


def usable(providers: Sequence[str], device: Device) -> list[str]:
    """ONNX Runtime's names of a list of providers, or of the device's own, without those it can do without here."""
    wanted = tuple(providers) or (device.kind,)
    if device.kind == "cpu" and "cpu" in wanted:
        wanted = tuple(name for name in wanted if name not in _ON_NVIDIA)
    names = [PROVIDERS[name] for name in wanted]
    present = ort.get_available_providers()
    return [name for name in names if name in present or not may_be_missing(name, providers)]


def may_be_missing(name: str, providers: Sequence[str]) -> bool:
    """Whether a list of providers allows to do without one, by ONNX Runtime's name, where it cannot be used."""
    return "cpu" in providers and name not in [PROVIDERS[nvidia] for nvidia in (*_ON_NVIDIA, "cpu")]


def no_provider(name: str, device: Device, reason: str) -> DeviceError:
    """What is told where a provider is there, but cannot use the device; or where none was asked for by name."""
    return DeviceError(
        f"onnxruntime {ort.__version__} cannot use {name} on {device}: {reason} "
        f"(providers of this build: {', '.join(ort.get_available_providers())})",
        key="model.device",
        allowed=["auto", "cpu"],
        hint="install the onnxruntime build and the driver that it needs on the executors, or set model.device: cpu",
    )


def lacking(name: str, device: Device, providers: Sequence[str]) -> DeviceError:
    """What is told where this build has no such provider: by the key that asked for it."""
    if not providers:
        return no_provider(name, device, "this build of onnxruntime lacks it")
    present = ort.get_available_providers()
    short = next(key for key, value in PROVIDERS.items() if value == name)
    other = f"[{short}, cpu] takes the CPU where {short} is missing"
    return DeviceError(
        f"onnxruntime {ort.__version__} has no {short} (its providers: {', '.join(present)})",
        key="model.providers",
        allowed=[key for key, value in PROVIDERS.items() if value in present],
        hint=f"install {_BUILDS[short]} in its place where the executors run, or name other providers"
        + (f": {other}" if may_be_missing(name, ["cpu"]) else ""),
    )
