"""Memory and utilisation of a task's device, by NVML. Executor side; makes no CUDA call.

NVML comes with NVIDIA's driver, its Python face with the optional package nvidia-ml-py. Where either is missing, the
figures are None.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import Any

from sparkinfer.core.telemetry import DeviceFigures
from sparkinfer.executor.device import read_gpu_facts

__all__ = ["device_figures"]

log = logging.getLogger(__name__)


def device_figures(name: str) -> DeviceFigures:
    """The figures now; takes some microseconds on a GPU and nothing on a CPU.

    Args:
        name: cpu, or cuda:N with N counted among the devices that this process can see.
    """
    kind, _, number = name.partition(":")
    if kind != "cuda":
        return DeviceFigures(name)
    uuid = _uuid(int(number or 0))
    nvml = _nvml() if uuid else None
    used = total = utilisation = None
    if nvml is not None:
        # A GPU of a kind that does not say one thing (MIG: utilisation) may still say the other.
        with contextlib.suppress(nvml.NVMLError):
            handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            used, total = int(memory.used), int(memory.total)
            utilisation = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    return DeviceFigures(name, uuid, used, total, utilisation)


@functools.cache
def _uuid(index: int) -> str | None:
    """Of the GPU that CUDA would count as `index`; None where the driver's files do not say."""
    facts = read_gpu_facts()
    if index >= len(facts.visible):
        return None
    name = facts.visible[index]
    return (facts.uuids[int(name)] or None) if name.isdecimal() else name


@functools.cache
def _nvml() -> Any:
    """The module, ready; None where there is none."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception as error:
        log.info("no figures of the GPU's memory and utilisation: %s", error)
        return None
    return pynvml
