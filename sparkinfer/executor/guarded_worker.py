"""Where guarded rows run: `python -m sparkinfer.executor.guarded_worker DESCRIPTOR`. Executor side; free of Spark.

Started by `executor.guard_process.Nursery`, with the plan on stdin and the number of its socket as the argument. This
process imports what the plan needs, opens no model and starts no thread; each child is a fork of it. (So a runtime's
module must not start threads or CUDA where it is imported. Spark's own daemon asks the same of it.)
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection

import pyarrow as pa

from sparkinfer.core.errors import JobFailedError
from sparkinfer.core.registry import create_runtime
from sparkinfer.executor import taskcontext
from sparkinfer.executor.batching import BatchFactory
from sparkinfer.executor.decode import decoder_of
from sparkinfer.executor.guard_process import STATUS_BYTES, Kind, Mode, batch_of, die_with_parent, receive, send
from sparkinfer.executor.meter import Meter
from sparkinfer.executor.plan import TaskPlan
from sparkinfer.executor.rows import Chunk
from sparkinfer.executor.task import run_chain
from sparkinfer.executor.watchdog import Watch, Watchdog

__all__ = ["main"]

REQUEST_BYTES = 256


def main() -> None:
    """Forks a child for every socket that it is sent, until its worker is gone."""
    control = socket.socket(fileno=int(sys.argv[1]))
    worker, plan, facts = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the worker that started this process
    die_with_parent(worker)
    taskcontext.assume(facts)
    with contextlib.suppress(Exception):  # the child says what is wrong
        create_runtime(plan.model.format)
        decoder_of(plan.preprocess)
    pa.array([0])  # pyarrow imports pandas for its first array: half a second, which no row should be blamed for
    myself = os.getpid()
    while True:
        request, descriptors, _, _ = socket.recv_fds(control, REQUEST_BYTES, 1)
        if not request:
            return
        pid = os.fork()
        if pid == 0:
            control.close()
            die_with_parent(myself)
            _run_child(Connection(descriptors[0]), request.decode(), plan)
        os.close(descriptors[0])
        control.sendall(pid.to_bytes(STATUS_BYTES, "big", signed=True))
        _, status = os.waitpid(pid, 0)
        control.sendall(os.waitstatus_to_exitcode(status).to_bytes(STATUS_BYTES, "big", signed=True))


def _run_child(worker: Connection, request: str, plan: TaskPlan) -> None:
    """Does what the child is for; never returns."""
    limit, _, mode = request.partition(" ")
    status = 1
    try:
        if mode == Mode.DECODE:
            _decode(worker, plan)
        elif mode == Mode.ROW_BY_ROW:
            faulthandler.enable(2)
            _row_by_row(worker, plan)
        else:
            faulthandler.enable(2)
            _full_speed(worker, plan, float(limit))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        status = 0  # nobody waits for an answer any more
    except Exception as error:
        traceback.print_exc()
        send(worker, Kind.FAILED, body=_pickled(error))
    finally:
        os._exit(status)


def _pickled(error: Exception) -> bytes:
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)  # noqa: S301 - some pickle, but cannot be made again
    except Exception:
        return pickle.dumps(JobFailedError("".join(traceback.format_exception(error))))
    return pickled


def _full_speed(worker: Connection, plan: TaskPlan, limit_s: float) -> None:
    """The chain over one task after the other: the worker may have many short ones."""
    while True:
        meter = Meter()
        with Watchdog(limit_s) as watch:
            for result in run_chain(_incoming(worker, meter), plan, watch, meter):
                send(worker, Kind.RESULT, result)
        _send_figures(worker, meter)
        send(worker, Kind.DONE)


def _incoming(worker: Connection, meter: Meter) -> Iterator[pa.RecordBatch]:
    while True:
        _send_figures(worker, meter)
        send(worker, Kind.NEXT)
        kind, body = receive(worker)
        if kind is Kind.FINISH:
            return
        yield batch_of(body)


def _send_figures(worker: Connection, meter: Meter) -> None:
    send(worker, Kind.FIGURES, body=meter.take().to_json())


def _row_by_row(worker: Connection, plan: TaskPlan) -> None:
    """The chain over one row at a time, decoded where it is inferred."""
    alone = replace(plan, cores=1)
    watch, meter = _Teller(worker), Meter()
    send(worker, Kind.NEXT)
    while True:
        _, body = receive(worker)
        for result in run_chain([batch_of(body)], alone, watch, meter):
            _send_figures(worker, meter)
            send(worker, Kind.RESULT, result)


class _Teller(Watch):
    """Says when the model is being opened: that has no limit, and it is no row's fault if it fails."""

    def __init__(self, worker: Connection) -> None:
        self._worker = worker
        self.warm_up = True

    @contextmanager
    def loading(self) -> Iterator[None]:
        if not self.warm_up:  # every row asks for the model; it is open since the first
            yield
            return
        send(self._worker, Kind.LOADING)
        yield
        self.warm_up = False
        send(self._worker, Kind.OPENED)


def _decode(worker: Connection, plan: TaskPlan) -> None:
    """Decodes and preprocesses one row at a time, and forgets the picture."""
    factory = BatchFactory(plan.preprocess, plan.max_image_bytes)
    send(worker, Kind.NEXT)
    while True:
        _, body = receive(worker)
        chunk = Chunk(batch_of(body), plan.content, ())
        for row, data in enumerate(chunk.images()):
            batch = factory.new(1)
            factory.fill(batch, batch.reserve(chunk, row), data)
            factory.recycle(batch)
        send(worker, Kind.RESULT)


if __name__ == "__main__":
    main()
