"""The devices of a run, remembered to its end. Driver only; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparkinfer.core.telemetry import DeviceFigures, TaskMessage

__all__ = ["DeviceRecord", "Devices"]


@dataclass(frozen=True)
class DeviceRecord:
    """What a device did in a run.

    Attributes:
        host: where it is.
        kind: cpu, or cuda.
        name: cpu, or cuda:N as the process counts.
        uuid: of a GPU, where it is known.
        memory_total_bytes: of the device; None where nobody can say.
        peak_memory_used_bytes: the most that was told, by all processes; None where nobody can say.
        mean_utilisation: share of time in [0, 1] in which something ran on the GPU, by NVML: the mean of what was told.
        busy_share: share of the tasks' time in [0, 1] in which their model ran on it; None before any time has passed.
    """

    host: str
    kind: str
    name: str
    uuid: str | None
    memory_total_bytes: int | None
    peak_memory_used_bytes: int | None
    mean_utilisation: float | None
    busy_share: float | None


class Devices:
    """Adds up what tasks tell of their devices. Its size is that of the cluster, not of the run."""

    def __init__(self) -> None:
        self._uses: dict[tuple[str, str], _Use] = {}

    def hear(self, message: TaskMessage) -> None:
        """What a task tells of the device's memory and work, each time."""
        if message.device is not None:
            self._use(message.host, message.device).hear(message.device)

    def settle(self, message: TaskMessage) -> None:
        """The last message of an attempt that is over."""
        if message.device is not None:
            self._use(message.host, message.device).work(message)

    def records(self, running: Iterable[TaskMessage]) -> list[DeviceRecord]:
        """All of them, by host and name.

        Args:
            running: last messages of attempts that are not over.
        """
        extra: dict[tuple[str, str], list[TaskMessage]] = {}
        for message in running:
            if message.device is not None:
                extra.setdefault(_key(message.host, message.device), []).append(message)
        records = [use.record(host, extra.get((host, name), [])) for (host, name), use in self._uses.items()]
        return sorted(records, key=lambda record: (record.host, record.name, record.uuid or ""))

    def _use(self, host: str, device: DeviceFigures) -> _Use:
        return self._uses.setdefault(_key(host, device), _Use(device))


class _Use:
    """What is known of one device."""

    def __init__(self, device: DeviceFigures) -> None:
        self._device = device
        self._peak: int | None = None
        self._utilisation, self._told = 0.0, 0
        self._busy_seconds = self._task_seconds = 0.0

    def hear(self, device: DeviceFigures) -> None:
        self._device = device
        if device.memory_used_bytes is not None:
            self._peak = max(self._peak or 0, device.memory_used_bytes)
        if device.utilisation is not None:
            self._utilisation += device.utilisation
            self._told += 1

    def work(self, message: TaskMessage) -> None:
        self._busy_seconds += message.figures.busy_seconds
        self._task_seconds += message.seconds

    def record(self, host: str, running: Sequence[TaskMessage]) -> DeviceRecord:
        busy = self._busy_seconds + sum(message.figures.busy_seconds for message in running)
        seconds = self._task_seconds + sum(message.seconds for message in running)
        device = self._device
        return DeviceRecord(
            host=host,
            kind=device.name.partition(":")[0],
            name=device.name,
            uuid=device.uuid,
            memory_total_bytes=device.memory_total_bytes,
            peak_memory_used_bytes=self._peak,
            mean_utilisation=self._utilisation / self._told if self._told else None,
            busy_share=min(1.0, busy / seconds) if seconds else None,
        )


def _key(host: str, device: DeviceFigures) -> tuple[str, str]:
    return host, device.identity
