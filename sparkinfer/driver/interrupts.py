"""Ctrl-C and SIGTERM while Spark works: the run ends in order, and nobody sees pages of stack traces. Driver side.

An exception that a signal raises in the middle of a call to Java leaves that conversation broken, and py4j and Spark
tell at length what was cut off. So the first signal raises nothing: it has Spark cancel the run's jobs, upon which the
call returns by itself. A second one, or one whose jobs do not end, raises at once.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any, Self

from pyspark import SparkContext

__all__ = ["Interrupts", "handler_kept"]

AGAIN_SECONDS = 0.5
"""Between two cancellations: Spark cancels the jobs that run, and a query may start another just then."""

PATIENCE_SECONDS = 10.0
"""For the jobs to end. The driver may be doing something else: listing files, waiting for a store."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PY4J = ("root", "py4j.clientserver")
"""Loggers that py4j tells of every call that is cut off, before it raises the same."""


@contextmanager
def handler_kept() -> Iterator[None]:
    """Keeps the process's handler of Ctrl-C while a session is made inside: pyspark would put its own in its place."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


class Interrupts:
    """Ends the jobs of one run when a signal comes whose handler raises KeyboardInterrupt; while it is open.

    A handler that raises nothing, as that of a job which ends after its present snapshot, is called and that is all.
    Outside of the main thread, where Python takes no signals, it does nothing.

    Args:
        context: Spark's.
        run_id: of the run.
    """

    def __init__(self, context: SparkContext, run_id: str) -> None:
        self._context, self._tag = context, f"sparkinfer-run-{run_id}"
        self._before: dict[int, Any] = {}
        self._interrupt: KeyboardInterrupt | None = None
        self._over = threading.Event()
        self._log_level: str | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            before = {number: signal.getsignal(number) for number in _SIGNALS}
            self._before = {number: handler for number, handler in before.items() if callable(handler)}
            for number in self._before:
                signal.signal(number, self._on_signal)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        for name in _PY4J:
            logging.getLogger(name).removeFilter(_is_not_py4js)
        if self._log_level is not None:
            with suppress(Exception):  # Java may have ended by the same signal
                self._context.setLogLevel(self._log_level)

    @contextmanager
    def ending_jobs(self) -> Iterator[None]:
        """The jobs of the calling thread inside are the run's.

        Raises:
            KeyboardInterrupt: they were cancelled, by the signal that it names.
        """
        self._context.addJobTag(self._tag)
        try:
            yield
        except Exception:
            if self._interrupt is not None:
                raise self._interrupt from None
            raise
        finally:
            self._over.set()
            with suppress(Exception):
                self._context.removeJobTag(self._tag)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        try:
            self._before[number](number, frame)
        except KeyboardInterrupt as interrupt:
            if self._interrupt is not None or self._over.is_set():
                raise
            self._interrupt = interrupt
            for name in _PY4J:
                logging.getLogger(name).addFilter(_is_not_py4js)
            # A call to Java from here would be in the middle of another one's answer.
            threading.Thread(target=self._cancel, args=(number,), name="sparkinfer-interrupt", daemon=True).start()

    def _cancel(self, number: int) -> None:
        with suppress(Exception):
            self._silence()
        for _ in range(int(PATIENCE_SECONDS / AGAIN_SECONDS)):
            with suppress(Exception):
                self._context.cancelJobsWithTag(self._tag)
            if self._over.wait(AGAIN_SECONDS):
                return
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, number)

    def _silence(self) -> None:
        """Has Spark not tell of jobs that it ends because it was told to."""
        jvm: Any = self._context._jvm
        self._log_level = str(jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel())
        self._context.setLogLevel("OFF")


def _is_not_py4js(record: logging.LogRecord) -> bool:
    return record.module not in {"java_gateway", "clientserver"}
