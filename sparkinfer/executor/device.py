"""Which device a Python worker uses: decided before the first CUDA call, without any framework. Executor side.

`auto` takes a GPU when this process can see one, else the CPU, and says so in the log. A GPU that was asked for and is
not there is an error, never a silent CPU. A slice of a GPU (MIG) that Spark gives is made this process's only device.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sparkinfer.core.errors import DeviceError
from sparkinfer.core.protocols import Device

__all__ = ["GpuFacts", "read_gpu_facts", "resolve_device"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GpuFacts:
    """What can be known without CUDA.

    Attributes:
        uuids: of the node's GPUs in the order of their PCI addresses, which is that of `nvidia-smi`; "" where unknown.
        visible_devices: the environment's `CUDA_VISIBLE_DEVICES`; None when unset.
    """

    uuids: tuple[str, ...] = ()
    visible_devices: str | None = None

    def canonical(self, address: str) -> str:
        """One name for a GPU that may be given by its number on the node or by its UUID, abbreviated or not."""
        address = address.strip()
        if address.isdecimal():
            return str(int(address))
        matches = [str(number) for number, uuid in enumerate(self.uuids) if address and uuid.startswith(address)]
        return matches[0] if len(matches) == 1 else address

    @property
    def visible(self) -> tuple[str, ...]:
        """Canonical names of this process's GPUs, in CUDA's order.

        CUDA stops at the first entry of `CUDA_VISIBLE_DEVICES` that names no GPU ("CUDA C++ Programming Guide",
        environment variables), so `-1` or an empty value hides all.
        """
        everything = tuple(str(number) for number in range(len(self.uuids)))
        if self.visible_devices is None or not everything:
            return everything
        found: list[str] = []
        for entry in self.visible_devices.split(","):
            name = self.canonical(entry)
            # MIG instances have names of their own, which the node's list of GPUs does not hold.
            if name not in everything and not name.startswith("MIG-"):
                break
            found.append(name)
        return tuple(found)


def read_gpu_facts(root: Path = Path("/")) -> GpuFacts:
    """Looks at the NVIDIA driver's files and at the environment; makes no CUDA call.

    Args:
        root: of the file system, for tests.
    """
    minors = sorted(
        int(match[1]) for path in root.glob("dev/nvidia*") if (match := re.fullmatch(r"nvidia(\d+)", path.name))
    )
    by_minor = _uuids_by_minor(root / "proc/driver/nvidia/gpus")
    # The driver lists all GPUs of the machine; a container has device nodes only for its own.
    listed = [minor for minor in by_minor if minor in minors]
    ordered = listed + [minor for minor in minors if minor not in by_minor]
    return GpuFacts(
        uuids=tuple(by_minor.get(minor, "") for minor in ordered),
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


def _uuids_by_minor(folder: Path) -> dict[int, str]:
    """UUID of each GPU by the number of its device node, in the order of the PCI addresses."""
    found = {}
    for path in sorted(folder.glob("*/information")):
        text = path.read_text("utf-8", errors="replace")
        minor = re.search(r"^Device Minor:\s*(\d+)", text, re.MULTILINE)
        uuid = re.search(r"^GPU UUID:\s*(\S+)", text, re.MULTILINE)
        if minor:
            found[int(minor[1])] = uuid[1] if uuid else ""
    return found


def resolve_device(requested: str, task_addresses: Sequence[str] = (), *, facts: GpuFacts | None = None) -> Device:
    """The device for this process.

    Args:
        requested: auto, cpu, cuda, or cuda:N with N counted among the devices that this process can see.
        task_addresses: GPUs that Spark gave to the task. auto and cuda take the first; an address names a GPU of the
            node, so it is looked up among `CUDA_VISIBLE_DEVICES`.
        facts: read from this machine by default.

    Raises:
        DeviceError: the GPU that was asked for, or that Spark gave, is not visible.
    """
    if requested == "cpu":
        return Device("cpu")
    facts = read_gpu_facts() if facts is None else facts
    kind, _, number = requested.partition(":")
    if number:
        return _numbered(int(number), facts)
    if task_addresses:
        return _assigned(task_addresses[0], facts)
    if facts.visible:
        device = Device("cuda", 0)
    elif kind == "auto":
        device = Device("cpu")
    else:
        raise _missing("a GPU was asked for, but this process sees none", facts)
    if kind == "auto":
        log.info("device auto: %s, of %d visible GPUs", device, len(facts.visible))
    return device


def _numbered(index: int, facts: GpuFacts) -> Device:
    if index >= len(facts.visible):
        raise _missing(f"cuda:{index} was asked for, but this process sees {len(facts.visible)} GPUs", facts)
    return Device("cuda", index)


def _assigned(address: str, facts: GpuFacts) -> Device:
    if address.startswith("MIG-") and facts.visible_devices is None:
        # CUDA shows a process one slice, the first of all unless it is told which; it reads this at its first call.
        os.environ["CUDA_VISIBLE_DEVICES"] = address
        log.info("device: slice %s, given by Spark", address)
        return Device("cuda", 0)
    name = facts.canonical(address)
    if name not in facts.visible:
        raise _missing(f"Spark gave the task GPU {address!r}, which this process does not see", facts)
    device = Device("cuda", facts.visible.index(name))
    log.info("device: %s, which is GPU %s of the node, given by Spark", device, address)
    return device


def _missing(message: str, facts: GpuFacts) -> DeviceError:
    setting = "unset" if facts.visible_devices is None else repr(facts.visible_devices)
    return DeviceError(
        f"{message} (GPUs with a device node: {len(facts.uuids)}, CUDA_VISIBLE_DEVICES {setting})",
        key="model.device",
        allowed=["auto", "cpu", *(f"cuda:{index}" for index in range(len(facts.visible)))],
        hint="run the executors where there is a GPU and its driver, or set model.device: cpu",
    )
