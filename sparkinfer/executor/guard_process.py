"""The processes of a guarded task, and what they say to each other. Executor side; free of Spark.

    Spark's Python worker --starts--> nursery --forks--> child

The nursery (`executor.guarded_worker`) has imported everything and opened nothing, so that a child costs a fork, a few
milliseconds, instead of a new interpreter. Spark's worker itself is never forked: it may hold a framework's threads.
None outlives the one before it: the kernel kills it, and its socket ends.

Only what is listed in `Kind` crosses: Arrow batches and figures, and at the start the plan, pickled by its own parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
from enum import IntEnum, StrEnum
from multiprocessing.connection import Connection
from pathlib import Path

import pyarrow as pa

from sparkinfer.core.errors import JobFailedError
from sparkinfer.core.telemetry import Reading
from sparkinfer.executor.meter import Meter
from sparkinfer.executor.plan import TaskPlan
from sparkinfer.executor.taskcontext import TaskFacts

__all__ = ["Child", "ChildDiedError", "Kind", "Mode", "Nursery", "batch_of", "die_with_parent", "receive", "send"]

STATUS_BYTES = 8
"""Of a process id or an exit status on its way from the nursery."""


class Mode(StrEnum):
    """What a child does with the batches that it gets."""

    FULL_SPEED = "full speed"
    """Runs the chain over all of them; threads and model batches as in an unguarded task."""
    DECODE = "decode"
    """Decodes one row at a time and opens no model."""
    ROW_BY_ROW = "row by row"
    """Runs the chain over one row at a time."""


class Kind(IntEnum):
    """A message. Child and worker take turns, so that neither can wait for the other's full pipe."""

    NEXT = 1
    """Child: ready for a batch. At full speed before each one, else once."""
    BATCH = 2
    """Worker: here it is."""
    FINISH = 3
    """Worker: there is none left."""
    RESULT = 4
    """Child: the rows of the oldest batch not answered; after decoding only, nothing but that it survived."""
    DONE = 5
    """Child: everything of this task is answered; the next one may begin."""
    LOADING = 6
    """Child, row by row: the model is being opened."""
    OPENED = 7
    """Child, row by row: the model has been opened."""
    FIGURES = 8
    """Child, before it says something else: a `core.telemetry.Reading` of what it has done since the last one."""
    FAILED = 9
    """Child: this exception ends the task."""


class ChildDiedError(Exception):
    """A child ended, or was ended because it took too long.

    Attributes:
        status: its exit status, or minus the number of the signal.
        timed_out: it was ended.
        loading: it was opening the model.
    """

    def __init__(self, status: int, *, timed_out: bool = False, loading: bool = False) -> None:
        super().__init__(status)
        self.status = status
        self.timed_out = timed_out
        self.loading = loading

    def describe(self) -> str:
        """How it ended, for a person: "by SIGSEGV (segmentation fault)"."""
        if self.status >= 0:
            return f"with exit status {self.status}"
        name = signal.Signals(-self.status).name
        meaning = str(signal.strsignal(-self.status)).lower()
        if -self.status == signal.SIGKILL:
            meaning = "killed, most often by the system for want of memory"
        return f"by {name} ({meaning})"


def send(connection: Connection, kind: Kind, batch: pa.RecordBatch | None = None, body: bytes = b"") -> None:
    """Sends one message; a batch as an Arrow stream."""
    connection.send_bytes(bytes([kind]))
    if batch is not None:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as stream:
            stream.write_batch(batch)
        connection.send_bytes(sink.getvalue())
    else:
        connection.send_bytes(body)


def receive(connection: Connection) -> tuple[Kind, bytes]:
    """The next message.

    Raises:
        EOFError: the other side is gone.
    """
    return Kind(connection.recv_bytes()[0]), connection.recv_bytes()


def batch_of(body: bytes) -> pa.RecordBatch:
    """The batch of a message; reads `body` in place."""
    return pa.ipc.open_stream(pa.py_buffer(body)).read_next_batch()


def die_with_parent(parent: int) -> None:
    """Makes the kernel kill this process when `parent` ends (Linux; elsewhere the end of its socket ends it)."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG, linux/prctl.h
    if os.getppid() != parent:  # it ended before the kernel knew
        os._exit(0)


class Nursery:
    """Starts children for one plan, one at a time.

    Args:
        plan: of the task; its source must pickle.
        facts: what Spark says about the task, which a child cannot ask.
    """

    def __init__(self, plan: TaskPlan, facts: TaskFacts) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "sparkinfer.executor.guarded_worker", str(theirs.fileno())],
                stdin=subprocess.PIPE,
                stdout=2,  # what a plug-in prints belongs into the log
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
            )
        assert self._process.stdin is not None
        # If it is gone already, the first fork says so.
        with contextlib.suppress(BrokenPipeError), self._process.stdin as stdin:
            stdin.write(pickle.dumps((os.getpid(), plan, facts)))

    def fork(self, descriptor: int, request: bytes) -> int:
        """Starts a child with one end of a socket; gives its process id.

        Raises:
            JobFailedError: the nursery is gone.
        """
        with contextlib.suppress(OSError):  # if it is gone, the answer says so
            socket.send_fds(self._control, [request], [descriptor])
        return self._number()

    def status(self, pid: int, *, kill: bool) -> int:
        """Waits for the last child's end and gives its exit status, or minus the number of the signal.

        Args:
            kill: end it, unless it has ended already.
        """
        if kill and not select.select([self._control], [], [], 0)[0]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return self._number()

    def close(self) -> None:
        """Ends the nursery and its child."""
        self._control.close()
        self._process.kill()
        self._process.wait()

    def _number(self) -> int:
        data = b""
        while len(data) < STATUS_BYTES:
            try:
                part = self._control.recv(STATUS_BYTES - len(data))
            except OSError:
                part = b""
            if not part:
                ended = ChildDiedError(self._process.wait()).describe()
                raise JobFailedError(
                    f"the process that starts guarded workers has ended {ended}",
                    hint="its output is in the executor's stderr; Spark tries the task again",
                )
            data += part
        return int.from_bytes(data, "big", signed=True)


class Child:
    """One guarded process.

    Args:
        nursery: forks it.
        mode: what it is for.
        limit_s: of its own watchdog, at full speed.
        meter: told what it does; may be exchanged between two tasks.
    """

    def __init__(self, nursery: Nursery, mode: Mode, limit_s: float, meter: Meter) -> None:
        self._nursery = nursery
        self.meter = meter
        self._loading = False
        ours, theirs = socket.socketpair()
        with theirs:
            self._pid = nursery.fork(theirs.fileno(), f"{limit_s!r} {mode}".encode())
        self._connection = Connection(ours.detach())

    def send(self, kind: Kind, batch: pa.RecordBatch | None = None) -> None:
        """Sends a message.

        Raises:
            ChildDiedError: it is gone.
        """
        try:
            send(self._connection, kind, batch)
        except OSError as error:
            raise self._died() from error

    def receive(self, limit_s: float | None = None) -> tuple[Kind, bytes]:
        """The next message.

        Args:
            limit_s: end the child when none comes for so long; does not run while it opens the model.

        Raises:
            ChildDiedError: it is gone.
            Exception: what ended the task in the child.
        """
        while True:
            if not self._connection.poll(None if self._loading else limit_s):
                raise self._died(timed_out=True)
            try:
                kind, body = receive(self._connection)
            except (EOFError, OSError) as error:
                raise self._died() from error
            if kind is Kind.FAILED:
                raised: Exception = pickle.loads(body)  # noqa: S301 - from our own process
                raise raised
            if kind is Kind.FIGURES:
                self.meter.add(Reading.from_json(body))
            elif kind in {Kind.LOADING, Kind.OPENED}:
                self._loading = kind is Kind.LOADING
            else:
                return kind, body

    def end(self) -> int:
        """Ends it; gives its exit status, or minus the number of the signal."""
        self._connection.close()
        return self._nursery.status(self._pid, kill=True)

    def _died(self, *, timed_out: bool = False) -> ChildDiedError:
        if timed_out:
            return ChildDiedError(self.end(), timed_out=True, loading=self._loading)
        # Its socket has ended, so it is on its way out by itself: with its own status, which a kill would hide.
        self._connection.close()
        return ChildDiedError(self._nursery.status(self._pid, kill=False), loading=self._loading)
