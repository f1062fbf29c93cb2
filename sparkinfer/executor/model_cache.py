"""The loaded models of one Python worker: loaded once per process, kept across tasks and jobs. Executor side.

Live objects; nothing here pickles.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from sparkinfer.core.protocols import Runtime

__all__ = ["DEFAULT_LIMIT_BYTES", "ModelCache", "evict", "get_runtime", "loads"]

log = logging.getLogger(__name__)

DEFAULT_LIMIT_BYTES = 8 << 30
"""Bytes of model files whose runtimes one process keeps."""


@dataclass
class _Entry:
    """A place for one runtime; empty until a load succeeds."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    runtime: Runtime | None = None
    size_bytes: int = 0


class ModelCache:
    """Runtimes by key, the least recently used dropped above a number of bytes.

    A runtime that is dropped for want of room is not closed, because a task may still hold it: it goes when its last
    user lets go. `evict` closes it.

    Args:
        limit_bytes: sum of the sizes given to `get`; the newest runtime stays even if it exceeds it alone.
    """

    def __init__(self, limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._lock = threading.Lock()
        self.loads = 0
        """How many loads have succeeded."""

    def get(self, key: Hashable, load: Callable[[], Runtime], size_bytes: int = 0) -> Runtime:
        """The runtime of `key`; the first caller loads it, others wait for that.

        Raises:
            Exception: what `load` raised; the next caller tries again.
        """
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
        with entry.lock:
            if entry.runtime is None:
                entry.runtime = load()
                with self._lock:
                    self.loads += 1
                    entry.size_bytes = size_bytes
                    self._drop_oldest(entry)
            return entry.runtime

    def evict(self, key: Hashable) -> bool:
        """Drops and closes the runtime of `key`, which nobody may use any more; says whether there was one."""
        with self._lock:
            entry = self._entries.pop(key, None)
        if entry is None:
            return False
        with entry.lock:
            if entry.runtime is None:
                return False
            entry.runtime.close()
            entry.runtime = None
        return True

    def keys(self) -> list[Hashable]:
        """Of the models held now."""
        with self._lock:
            return list(self._entries)

    def _drop_oldest(self, newest: _Entry) -> None:
        total = sum(entry.size_bytes for entry in self._entries.values())
        for key, entry in list(self._entries.items()):
            if total <= self._limit_bytes:
                return
            if entry is not newest and entry.runtime is not None:
                del self._entries[key]
                total -= entry.size_bytes
                log.info("dropped the least recently used model of this process (%d bytes)", entry.size_bytes)


_cache = ModelCache()


def get_runtime(key: Hashable, load: Callable[[], Runtime], size_bytes: int = 0) -> Runtime:
    """`ModelCache.get` on this process's cache."""
    return _cache.get(key, load, size_bytes)


def evict(key: Hashable) -> bool:
    """`ModelCache.evict` on this process's cache."""
    return _cache.evict(key)


def evict_all() -> None:
    """Evicts every model of this process, which nobody may use any more."""
    for key in _cache.keys():  # noqa: SIM118 - a list of its own
        _cache.evict(key)


def loads() -> int:
    """How many models this process has loaded."""
    return _cache.loads
