"""What is known of a device: NVML where it is, nothing where it is not. With a module that plays NVML."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from sparkinfer.core.telemetry import DeviceFigures
from sparkinfer.executor import device_figures as module
from sparkinfer.executor.device import GpuFacts
from sparkinfer.executor.device_figures import device_figures


class NVMLError(Exception):
    """As NVIDIA's module has it."""


class Nvml:
    """Two GPUs, of which the second does not say how busy it is."""

    NVMLError = NVMLError
    started = 0

    def nvmlInit(self):  # noqa: N802
        self.started += 1

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        return {"GPU-a": 0, "GPU-b": 1}[uuid]

    def nvmlDeviceGetMemoryInfo(self, handle):  # noqa: N802
        return SimpleNamespace(used=100 + handle, total=1000)

    def nvmlDeviceGetUtilizationRates(self, handle):  # noqa: N802
        if handle:
            raise NVMLError
        return SimpleNamespace(gpu=87, memory=5)


@pytest.fixture
def nvml(monkeypatch):
    played = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", played)
    monkeypatch.setattr(module, "read_gpu_facts", lambda: GpuFacts(("GPU-a", "GPU-b"), "1,0"))
    yield played
    module._nvml.cache_clear()
    module._uuid.cache_clear()


@pytest.fixture(autouse=True)
def _forget():
    module._nvml.cache_clear()
    module._uuid.cache_clear()


def test_gpus_are_found_by_their_uuid_whatever_is_visible(nvml):
    assert device_figures("cuda:1") == DeviceFigures("cuda:1", "GPU-a", 100, 1000, 0.87)
    assert device_figures("cuda:0") == DeviceFigures("cuda:0", "GPU-b", 101, 1000, None)
    assert nvml.started == 1


def test_a_cpu_is_not_asked(nvml):
    assert device_figures("cpu") == DeviceFigures("cpu")
    assert nvml.started == 0


def test_without_nvml_the_device_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(module, "read_gpu_facts", lambda: GpuFacts(("GPU-a",)))
    assert device_figures("cuda:0") == DeviceFigures("cuda:0", "GPU-a")


def test_a_device_that_is_not_there_is_named_too(nvml):
    assert device_figures("cuda:7") == DeviceFigures("cuda:7")
