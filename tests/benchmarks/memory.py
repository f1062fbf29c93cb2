"""Peak memory of a process and all that it starts: the JVM, Python workers, Ray's servers."""

from __future__ import annotations

import threading
from typing import Self

import psutil

__all__ = ["PeakMemory"]

INTERVAL = 0.5
"""Seconds between looks at the resident sizes, which cost nothing."""

GROWN = 1.02
"""Growth of the resident sizes from which the page tables are read: 15 to 30 ms for each process of some 600 MB, in
which the process itself stands still, so reading them all the time would slow down those who have more processes."""


class PeakMemory:
    """Samples a process tree in the background; use as a context manager.

    Counts proportional set size (PSS): a page that N processes share counts 1/N in each, so the sum is what the
    machine really holds. Processes once seen in the tree stay counted when their parent dies first.

    Attributes:
        peak: bytes; the largest sum of any sample.
    """

    def __init__(self, pid: int) -> None:
        self.peak = 0
        self._largest = 0.0
        self._root = psutil.Process(pid)
        self._seen: set[psutil.Process] = set()
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
            try:
                self._seen |= {self._root, *self._root.children(recursive=True)}
            except psutil.NoSuchProcess:
                return
            resident = sum(map(_rss, self._seen))
            if resident > GROWN * self._largest:
                self._largest = resident
                self.peak = max(self.peak, sum(map(_pss, self._seen)))

    def stragglers(self) -> list[psutil.Process]:
        """Processes of the tree that still run."""
        return [process for process in self._seen if process.is_running()]


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0  # gone meanwhile


def _pss(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except psutil.Error:
        return 0  # gone meanwhile
