"""Plays the kernel's out-of-memory killer for the Python workers below a process. Linux; no Spark.

What a container's memory limit does, without the rights that setting one takes: the process that has passed the limit
gets SIGKILL at whatever point it is, and nobody is told why.
"""

from __future__ import annotations

import os
import threading
from typing import Self

import psutil

__all__ = ["MemoryKiller"]

INTERVAL = 0.02
"""Seconds between looks: a process that fills memory takes some 50 MB in that time."""


class MemoryKiller:
    """Kills processes below this one that hold more than a limit; use as a context manager.

    Args:
        limit: resident bytes.

    Attributes:
        killed: how many.
    """

    def __init__(self, limit: int) -> None:
        self.killed = 0
        self._limit = limit
        self._root = psutil.Process(os.getpid())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL):
            for process in self._root.children(recursive=True):
                try:
                    if process.name().startswith("python") and process.memory_info().rss > self._limit:
                        process.kill()
                        self.killed += 1
                except psutil.Error:
                    continue  # it has just ended
