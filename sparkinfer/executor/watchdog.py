"""Notices a row that does not end. Executor side, in the process that decodes and infers; nothing here pickles.

A `Watch` is told what a thread begins and ends. The base class takes no notice; a `Watchdog` ends the process when one
image's decoding, or one call of the model, takes longer than `errors.row_timeout`. Nothing less helps: a thread that is
stuck in native code cannot be stopped. Then Spark tries the task again, guarded (`executor.guard`), and the row is
found.

What the limit is measured on: decoding and preprocessing of one image; one call of the model, whatever the size of its
batch, ten times as long for the first call in a task (engines may be built and kernels chosen in it). Opening the
model has no limit. A batch that is merely slow is no wrong verdict: only rows run alone are ever called TIMEOUT.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import Self

__all__ = ["Watch", "Watchdog"]

FIRST_CALL = 10
"""Times the limit: for the model's first call in a task."""

_LOOKS = 10
"""Looks in one limit."""

_SHORTEST, _LONGEST = 0.02, 5.0
"""Seconds between two looks."""

_STDERR = 2
"""Descriptor: `sys.stderr` may be replaced by something that native code cannot write to."""


class Watch:
    """Told what begins and ends; takes no notice."""

    warm_up = False
    """Whether the model is to run on zeros before its first image."""

    def decoding(self) -> AbstractContextManager[object]:
        """Around one image's decoding and preprocessing. Any thread."""
        return nullcontext()

    def inferring(self) -> AbstractContextManager[object]:
        """Around one call of the model. Any thread."""
        return nullcontext()

    def loading(self) -> AbstractContextManager[object]:
        """Around opening the model. Any thread."""
        return nullcontext()


class Watchdog(Watch):
    """Ends this process (SIGKILL) when one row takes too long; a context manager that watches while it is open.

    Args:
        limit_s: longest time for one image's decoding, or for one call of the model, seconds.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._interval_s = min(_LONGEST, max(_SHORTEST, limit_s / _LOOKS))
        # By thread: what it does, since when, and until when it may. One assignment a row; no lock.
        self._running: dict[int, tuple[str, float, float]] = {}
        self._first_call = True
        self._loading = 0
        self._timer = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="sparkinfer-watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        faulthandler.cancel_dump_traceback_later()

    @contextmanager
    def decoding(self) -> Iterator[None]:
        """Limited, for the calling thread."""
        with self._limited("decoding one image", self._limit_s):
            yield

    @contextmanager
    def inferring(self) -> Iterator[None]:
        """Limited, for the calling thread."""
        first, self._first_call = self._first_call, False
        with self._limited("one call of the model", self._limit_s * (FIRST_CALL if first else 1)):
            if first:
                self._set_timer()
            yield
        if first:
            self._set_timer()

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Not limited. Opening a model may hold the interpreter's lock for minutes, so the timer rests too."""
        with self._timer:
            self._loading += 1
            faulthandler.cancel_dump_traceback_later()
        try:
            yield
        finally:
            with self._timer:
                self._loading -= 1

    @contextmanager
    def _limited(self, what: str, limit_s: float) -> Iterator[None]:
        me = threading.get_ident()
        now = time.monotonic()
        self._running[me] = (what, now, now + limit_s)
        try:
            yield
        finally:
            del self._running[me]

    def _watch(self) -> None:
        late: set[tuple[str, float, float]] = set()
        while True:
            self._set_timer()
            if self._stop.wait(self._interval_s):
                return
            now = time.monotonic()
            overdue = {entry for entry in list(self._running.values()) if entry[2] < now}
            # Late at two looks: a process that was frozen for a while finds everything late at the first.
            if found := overdue & late:
                _end_process(min(found, key=lambda entry: entry[1]))
            late = overdue

    def _set_timer(self) -> None:
        """Sets the interpreter's own alarm, a native thread: this one cannot run while native code holds the lock.

        Until the next look it is set anew; if none comes, it writes every thread's traceback and ends the process.
        """
        with self._timer:
            if not self._loading:
                now = time.monotonic()
                longest = max([self._limit_s, *(until - now for _, _, until in list(self._running.values()))])
                faulthandler.dump_traceback_later(longest + 2 * self._interval_s, exit=True, file=_STDERR)


def _end_process(entry: tuple[str, float, float]) -> None:
    what, started, until = entry
    line = (
        f"sparkinfer: {what} takes longer than {until - started:g} s (errors.row_timeout): ending Python process "
        f"{os.getpid()}; the next attempt finds the row and marks it TIMEOUT\n"
    )
    os.write(_STDERR, line.encode())
    faulthandler.dump_traceback(file=_STDERR, all_threads=True)
    os.kill(os.getpid(), signal.SIGKILL)
