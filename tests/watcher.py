"""Looks at processes again and again in the background, for as long as something runs. No Spark."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from typing import Self

import psutil

__all__ = ["Watcher"]


class Watcher(ABC):
    """Looks while it is open, and once more at the end; use as a context manager.

    Args:
        pid: process whose tree is looked at.
        interval: seconds between looks.
    """

    def __init__(self, pid: int, interval: float) -> None:
        self._root = psutil.Process(pid)
        self._interval = interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._look_below()

    @abstractmethod
    def look(self, below: list[psutil.Process]) -> None:
        """Looks at all that runs below the process, which may end at any moment."""

    def _watch(self) -> None:
        while not self._stop.wait(self._interval):
            self._look_below()

    def _look_below(self) -> None:
        try:
            below = self._root.children(recursive=True)
        except psutil.NoSuchProcess:  # and all below it
            return
        self.look(below)
