"""Which attempts at the tasks of one pass run, which are over, and which count. Driver only; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from sparkinfer.core.telemetry import DeviceFigures, TaskMessage, TaskState
from sparkinfer.executor.report import Tally

__all__ = ["Attempts"]


class Attempts:
    """The attempts at the tasks of one pass over an input, by what they tell.

    Attributes:
        running: last message of every attempt that is not over, by attempt.
        devices: (host, device) that were told of, by host and the device's UUID or name; as last told.
        batch_size: largest that a running task uses; None before one is known.
    """

    def __init__(self) -> None:
        self.running: dict[int, TaskMessage] = {}
        self.devices: dict[tuple[str, str], tuple[str, DeviceFigures]] = {}
        self.batch_size: int | None = None
        self._over: set[int] = set()
        self._best: dict[int, _Done] = {}  # by partition
        self._rows = 0
        self._errors: Counter[str] = Counter()

    @property
    def counts(self) -> Tally:
        """Rows of the attempts that count: of each partition the one that ended, else the one that is furthest."""
        return Tally(self._rows, {code: count for code, count in self._errors.items() if count})

    def take(self, message: TaskMessage) -> list[TaskMessage]:
        """Takes a message, unless it is late; gives the last messages of the attempts that it ends."""
        before = self.running.get(message.attempt)
        if message.attempt in self._over or (before is not None and before.sequence >= message.sequence):
            return []
        self.running[message.attempt] = message
        self._count(message)
        # A process runs one task at a time: what it ran before is over, though it may not have said so.
        process = (message.host, message.pid)
        over = [
            other
            for other in self.running.values()
            if ((other.host, other.pid) == process and other is not message)
            or (other is message and message.state is not TaskState.RUNNING)
        ]
        for other in over:
            self._over.add(other.attempt)
            del self.running[other.attempt]
        self.batch_size = max((m.batch_size for m in (message, *self.running.values())), default=0) or None
        if message.device is not None:
            key = (message.host, message.device.identity)
            self.devices[key] = (message.host, message.device)
        return over

    def _count(self, message: TaskMessage) -> None:
        mine = _Done(message.attempt, message.state, message.figures.rows, message.figures.errors)
        best = self._best.get(message.partition)
        if best is not None:
            if best.attempt != mine.attempt and not mine.beats(best):
                return
            self._rows -= best.rows
            self._errors.subtract(best.errors)
        self._best[message.partition] = mine
        self._rows += mine.rows
        self._errors.update(mine.errors)


@dataclass(frozen=True)
class _Done:
    """What an attempt has done of its partition."""

    attempt: int
    state: TaskState
    rows: int
    errors: Mapping[str, int]

    def beats(self, other: _Done) -> bool:
        """Whether this attempt counts and not the other."""
        if other.state is TaskState.ENDED:
            return False
        return self.state is TaskState.ENDED or self.rows > other.rows
