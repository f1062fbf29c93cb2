"""Peak memory of the Python workers that this machine's Spark starts, by the kernel's own count. Linux; no Spark."""

from __future__ import annotations

import os

import psutil

from tests.watcher import Watcher

__all__ = ["WorkerPeak"]

INTERVAL = 0.05
"""Seconds between looks. The kernel keeps the maximum (VmHWM), so only what a worker takes after the last look at it
is missed."""


class WorkerPeak(Watcher):
    """Watches the Python processes below a process; use as a context manager.

    Attributes:
        peak: bytes; the largest resident size that any worker ever had. Includes what it shares with its siblings: the
            interpreter and the libraries.
    """

    def __init__(self, pid: int | None = None) -> None:
        super().__init__(pid or os.getpid(), INTERVAL)
        self.peak = 0

    def look(self, below: list[psutil.Process]) -> None:
        """Asks the kernel for the most that each worker has held."""
        for process in below:
            try:
                command = process.cmdline()
            except psutil.Error:
                continue
            if any("pyspark.daemon" in part or "pyspark/daemon" in part for part in command):
                self.peak = max(self.peak, _high_water(process.pid))


def _high_water(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as file:  # noqa: PTH123
            return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return 0  # gone meanwhile
