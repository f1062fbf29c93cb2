"""Peak memory of a process and all that it starts: the JVM, Python workers, Ray's servers."""

from __future__ import annotations

import psutil

from tests.watcher import Watcher

__all__ = ["PeakMemory"]

INTERVAL = 0.5
"""Seconds between looks at the resident sizes, which cost nothing."""

GROWN = 1.02
"""Growth of the resident sizes from which the page tables are read: 15 to 30 ms for each process of some 600 MB, in
which the process itself stands still, so reading them all the time would slow down those who have more processes."""


class PeakMemory(Watcher):
    """Samples a process tree in the background; use as a context manager.

    Counts proportional set size (PSS): a page that N processes share counts 1/N in each, so the sum is what the
    machine really holds. Processes once seen in the tree stay counted when their parent dies first.

    Attributes:
        peak: bytes; the largest sum of any sample.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(pid, INTERVAL)
        self.peak = 0
        self._largest = 0.0
        self._seen: set[psutil.Process] = set()

    def look(self, below: list[psutil.Process]) -> None:
        """Adds up the whole tree."""
        self._seen |= {self._root, *below}
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
