"""The fake model's log, read while the model works."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["Calls", "Seen"]

BUSY_SECONDS = 0.5
_INSPECTION_ROWS = 2
"""What the driver's inspection of the model gives it, once, in a short-lived process."""


@dataclass
class Seen:
    """Of one look.

    Attributes:
        rows: that Python workers gave the model.
        new_workers: of them, how many gave it their first batch.
    """

    rows: int = 0
    new_workers: int = 0


class Calls:
    """The log of one job.

    Args:
        log: the model's; need not be there yet.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        self._read = 0
        self._is_worker: dict[int, bool] = {}
        self._last: dict[int, float] = {}

    def look(self, driver: int) -> Seen:
        """What has come since the last look.

        Args:
            driver: its process id: what runs below it is no worker.
        """
        seen = Seen()
        for line in self._new_lines():
            call = json.loads(line)
            pid, rows = call["pid"], call["rows"]
            if call["event"] != "infer":
                continue
            is_new = pid not in self._is_worker
            if is_new:
                self._is_worker[pid] = _is_worker(pid, rows, driver)
            if self._is_worker[pid]:
                seen.rows += rows
                seen.new_workers += is_new
                self._last[pid] = time.monotonic()
        return seen

    def is_busy(self, pid: int) -> bool:
        """Whether a process gave the model a batch just now."""
        return time.monotonic() - self._last.get(pid, -BUSY_SECONDS) < BUSY_SECONDS

    def _new_lines(self) -> list[bytes]:
        if not self._log.exists():
            return []
        with self._log.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        return whole.splitlines()


def _is_worker(pid: int, rows: int, driver: int) -> bool:
    try:
        return driver not in {parent.pid for parent in psutil.Process(pid).parents()}
    except psutil.Error:  # gone already
        return rows != _INSPECTION_ROWS
