"""Plays the kernel's out-of-memory killer for the Python workers below a process. Linux; no Spark.

What a container's memory limit does, without the rights that setting one takes: the process that has passed the limit
gets SIGKILL at whatever point it is, and nobody is told why.
"""

from __future__ import annotations

import os

import psutil

from tests.watcher import Watcher

__all__ = ["MemoryKiller"]

INTERVAL = 0.02
"""Seconds between looks: a process that fills memory takes some 50 MB in that time."""


class MemoryKiller(Watcher):
    """Kills processes below this one that hold more than a limit; use as a context manager.

    Args:
        limit: resident bytes.

    Attributes:
        killed: how many.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(os.getpid(), INTERVAL)
        self.killed = 0
        self._limit = limit

    def look(self, below: list[psutil.Process]) -> None:
        """Kills those that hold too much."""
        for process in below:
            try:
                if process.name().startswith("python") and process.memory_info().rss > self._limit:
                    process.kill()
                    self.killed += 1
            except psutil.Error:
                continue  # it has just ended
