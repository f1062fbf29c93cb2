"""Sends what a task does to the driver, while it runs. Executor side, in the process that Spark started.

The one module below the driver that may use ZeroMQ (pyzmq), loaded when the first message is sent. `TelemetryTarget`
pickles; everything else lives in its process.

A thread of its own owns the socket: about every second, and when a task ends, it sends the figures so far and never
waits for anybody. The driver may be gone, slow or unreachable, pyzmq may be missing: then messages are dropped, once
with a line in the log, and the task does not notice.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sparkinfer.core.telemetry import Figures, TaskMessage, TaskState, pack
from sparkinfer.executor import taskcontext
from sparkinfer.executor.device_figures import device_figures
from sparkinfer.executor.meter import Meter

__all__ = ["TelemetryTarget", "metered"]

log = logging.getLogger(__name__)

QUEUED_MESSAGES = 8
"""That wait for the driver; when it does not take them, newer ones are dropped. Each is some 2 kB."""

RECONNECT_MS = (1_000, 30_000)
"""Between two attempts to reach a driver that does not answer: at first, and at most."""


@dataclass(frozen=True)
class TelemetryTarget:
    """Where a run's tasks send their figures. Pickles; travels in `TaskPlan`.

    Attributes:
        run_id: of the run.
        address: of the driver's socket, as ZeroMQ writes it: tcp://host:port.
        token: the run's secret, which signs the messages; never sent.
        interval_s: between two messages of one process, seconds.
        pass_number: of the run's present pass over an input.
    """

    run_id: str
    address: str
    token: bytes = field(repr=False)
    interval_s: float = 1.0
    pass_number: int = 0


@contextmanager
def metered(target: TelemetryTarget | None, engine: str, cores: int, *, ends: bool = True) -> Iterator[Meter]:
    """A meter for the running attempt, whose figures are sent while the context is open.

    Args:
        target: None sends nothing.
        engine: by which Spark calls.
        cores: that the task decodes on.
        ends: the attempt ends with the context. Else it may go on with another context, which then gets the same
            meter: `predict_batch_udf` calls for every few rows, and does not say when the task ends.

    Yields:
        What the chain must tell.
    """
    if target is None:
        yield Meter()
        return
    attempt = _reporter.begin(target, engine, cores)
    state = TaskState.FAILED
    try:
        yield attempt.meter
        state = TaskState.ENDED
    except GeneratorExit:  # Spark wants no more rows, as after LIMIT
        state = TaskState.ENDED
        raise
    finally:
        _reporter.leave(attempt, state if ends or state is TaskState.FAILED else TaskState.RUNNING)


class _Attempt:
    """One attempt at a task, as this process knows it."""

    def __init__(self, target: TelemetryTarget, engine: str, cores: int) -> None:
        self.target = target
        self.meter = Meter()
        self.inside = False
        self._engine, self._cores = engine, cores
        self._ids: dict[str, Any] = {
            "run_id": target.run_id,
            "pass_number": target.pass_number,
            "stage": taskcontext.stage_id(),
            "partition": taskcontext.partition_id(),
            "attempt": taskcontext.task_attempt_id(),
            "attempt_number": taskcontext.attempt_number(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
        }
        self._started, self._clock_started = time.time(), time.monotonic()
        self._left = self._clock_started
        self._lock = threading.Lock()
        self._sequence = 0
        self._sent: Figures | None = None

    def is_of(self, target: TelemetryTarget) -> bool:
        """Whether this is the attempt that runs now."""
        return self.target == target and self._ids["attempt"] == taskcontext.task_attempt_id()

    def enter(self) -> None:
        """The attempt runs."""
        self.inside = True

    def leave(self) -> None:
        """The attempt rests or has ended."""
        self._left = time.monotonic()
        self.inside = False

    def packed(self, state: TaskState) -> bytes | None:
        """The next message; None when there is nothing new to say."""
        with self._lock:
            reading = self.meter.read()
            if state is TaskState.RUNNING and not self.inside and reading.figures == self._sent:
                return None
            self._sent = reading.figures
            self._sequence += 1
            message = TaskMessage(
                **self._ids,
                sequence=self._sequence,
                state=state,
                started=self._started,
                seconds=(time.monotonic() if self.inside else self._left) - self._clock_started,
                engine=self._engine,
                cores=self._cores,
                batch_size=reading.batch_size,
                device=device_figures(reading.device) if reading.device else None,
                figures=reading.figures,
            )
        return pack(message, self.target.token)


class _Reporter:
    """The thread that sends, and what it is to send. One per process, started with its first task."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._outbox: deque[tuple[str, bytes]] = deque(maxlen=QUEUED_MESSAGES)
        self._latest: _Attempt | None = None  # may go on
        self._watched: _Attempt | None = None  # may have news
        self._thread: threading.Thread | None = None

    def begin(self, target: TelemetryTarget, engine: str, cores: int) -> _Attempt:
        """The running attempt: a new one, unless it goes on."""
        with self._lock:
            if self._latest is None or not self._latest.is_of(target):
                self._latest = _Attempt(target, engine, cores)
            self._watched = attempt = self._latest
            attempt.enter()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sparkinfer-telemetry", daemon=True)
                self._thread.start()
        self._wake.set()
        return attempt

    def leave(self, attempt: _Attempt, state: TaskState) -> None:
        """The attempt has ended, or rests while it is `running`."""
        attempt.leave()
        if state is TaskState.RUNNING:
            return
        with self._lock:
            if self._latest is attempt:
                self._latest = self._watched = None
        data = attempt.packed(state)
        assert data is not None
        self._outbox.append((attempt.target.address, data))
        self._wake.set()

    def _run(self) -> None:
        link, due = _Link(), 0.0
        while True:
            attempt = self._watched
            self._wake.wait(None if attempt is None else max(0.0, due - time.monotonic()))
            self._wake.clear()
            while self._outbox:
                link.send(*self._outbox.popleft())
            attempt = self._watched
            if attempt is None or time.monotonic() < due:
                continue
            data = attempt.packed(TaskState.RUNNING)
            due = time.monotonic() + attempt.target.interval_s
            if data is not None:
                link.send(attempt.target.address, data)
                continue
            with self._lock:
                if self._watched is attempt and not attempt.inside:
                    self._watched = None


class _Link:
    """A socket to one driver after the other. Of one thread."""

    def __init__(self) -> None:
        self._address = ""
        self._context: Any = None
        self._socket: Any = None

    def send(self, address: str, data: bytes) -> None:
        """Sends or drops."""
        try:
            if address != self._address:
                self._address = address  # also when it fails: not again for every message
                self._connect(address)
            if self._socket is not None:
                self._send(data)
        except Exception as error:
            log.warning("this process sends no live figures: %s", error)
            self._close()

    def _connect(self, address: str) -> None:
        self._close()
        import zmq

        self._context = self._context or zmq.Context()
        self._socket = self._context.socket(zmq.PUSH)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.SNDHWM, QUEUED_MESSAGES),
            (zmq.RECONNECT_IVL, RECONNECT_MS[0]),
            (zmq.RECONNECT_IVL_MAX, RECONNECT_MS[1]),
            (zmq.IPV6, int("[" in address)),
        ):
            self._socket.setsockopt(option, value)
        self._socket.connect(address)

    def _send(self, data: bytes) -> None:
        import zmq

        with contextlib.suppress(zmq.Again):  # the queue is full: the driver is slow, or gone
            self._socket.send(data, zmq.NOBLOCK)

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close(0)
            self._socket = None


_reporter = _Reporter()
