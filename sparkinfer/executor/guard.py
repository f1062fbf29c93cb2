"""Rows that end the process they run in, found and marked, while their neighbours are predicted. Executor side.

Spark's Python worker keeps the rows and supervises; the chain runs in a child (`guard_process`). The child works at
full speed until it dies. Then, of the rows that it had been given and had not answered:

1. every one is decoded alone, in a child that opens no model. Who ends that child, or takes longer than
   `errors.row_timeout`, is guilty and becomes a WORKER_CRASHED or TIMEOUT row;
2. if none is, every one goes through the whole chain alone, and the same holds;

and work goes on at full speed with those that are left. A row is found guilty of a crash at the second one, since a
child may also be killed for what others do; and nobody is found guilty of a death while the model was being opened.

What it costs: nothing while nothing has failed, since only later attempts of a task are guarded (`run_task`). Then a
model that is opened again for every group of poison rows, and for each of them two forks, or `row_timeout`.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkinfer.core.errors import ErrorCode, JobFailedError, ModelError, RowError, Stage
from sparkinfer.executor import taskcontext
from sparkinfer.executor.artifact import materialise
from sparkinfer.executor.guard_process import Child, ChildDiedError, Kind, Mode, Nursery, batch_of
from sparkinfer.executor.meter import Meter
from sparkinfer.executor.model_cache import evict_all
from sparkinfer.executor.plan import LocalFileSource, TaskPlan
from sparkinfer.executor.rows import Chunk, Labels
from sparkinfer.executor.taskcontext import TaskFacts

__all__ = ["close_idle", "run_guarded"]

log = logging.getLogger(__name__)

PIECE_ROWS, PIECE_BYTES = 32, 16 << 20
"""Most rows and image bytes that are sent, and answered, at once: what is suspected after a death is a few of these."""

MAX_IDLE_DEATHS = 3
"""Children that die before they have taken a row: then it is none of the rows."""


def run_guarded(batches: Iterable[pa.RecordBatch], plan: TaskPlan, meter: Meter) -> Iterator[pa.RecordBatch]:
    """`task.run_task` with the chain in a process of its own.

    Args:
        batches: as for `run_task`.
        plan: as for `run_task`.
        meter: as for `run_task`; told what the children do.

    Yields:
        As `run_task`, in smaller batches.

    Raises:
        ModelError: also when opening the model ends the process.
        JobFailedError: guarded processes die before they take a row.
    """
    pieces = _pieces(batches, plan)
    first = next(pieces, None)
    if first is None:
        return
    evict_all()  # of earlier, unguarded tasks of this worker: their memory is the child's now
    path = materialise(plan.artifact, plan.source)
    plan = replace(plan, source=LocalFileSource(path), keys=(), counts=None, telemetry=None)
    guard = _take_idle(plan, taskcontext.facts())
    try:
        yield from guard.run(chain([first], pieces), meter)
    except BaseException:  # also when Spark stops reading early
        guard.close()
        raise
    _keep_idle(guard)


class _Guard:
    """Runs the pieces of one task after the other through children.

    Args:
        plan: what the children do; without keys, which stay here.
        facts: of the tasks.
    """

    def __init__(self, plan: TaskPlan, facts: TaskFacts) -> None:
        self.plan = plan
        self.facts = facts
        self._nursery = Nursery(plan, facts)
        self._child: Child | None = None
        self._limit_s = plan.row_timeout
        self._meter = Meter()

    def run(self, pieces: Iterator[_Piece], meter: Meter) -> Iterator[pa.RecordBatch]:
        """Predicts the rows of one task."""
        self._meter = meter
        if self._child is not None:
            self._child.meter = meter
        waiting: deque[_Piece] = deque()
        idle_deaths = 0
        while True:
            try:
                yield from self._full_speed(pieces, waiting)
            except ChildDiedError as death:
                self._child = None
                log.warning("a guarded process ended %s; its rows are tried one by one", death.describe())
                idle_deaths = 0 if waiting else idle_deaths + 1
                if idle_deaths == MAX_IDLE_DEATHS:
                    raise _no_row_is_guilty(death) from death
            else:
                return
            if waiting and not self._try_alone(Mode.DECODE, waiting) and not self._try_alone(Mode.ROW_BY_ROW, waiting):
                # Nobody is guilty alone. If a batch was merely slow, the next one may take longer.
                self._limit_s *= 2
            yield from _settled(waiting)

    def close(self) -> None:
        """Ends all processes."""
        if self._child is not None:
            with contextlib.suppress(JobFailedError):  # the nursery is gone, and the child with it
                self._child.end()
            self._child = None
        self._nursery.close()

    def _full_speed(self, pieces: Iterator[_Piece], waiting: deque[_Piece]) -> Iterator[pa.RecordBatch]:
        """Runs the rows of `waiting` that are not settled, then `pieces`; what is unanswered is left in `waiting`."""
        if self._child is None:
            self._child = Child(self._nursery, Mode.FULL_SPEED, self._limit_s, self._meter)
        child = self._child
        again = iter([piece for piece in waiting if piece.open_rows])
        while True:
            kind, body = child.receive()
            if kind is Kind.NEXT:
                piece = next(again, None)
                if piece is None:
                    piece = next(pieces, None)
                    if piece is not None:
                        waiting.append(piece)
                if piece is None:
                    child.send(Kind.FINISH)
                else:
                    child.send(Kind.BATCH, piece.images(piece.open_rows))
            elif kind is Kind.RESULT:
                # Answers come in the order of the batches.
                piece = next(piece for piece in waiting if piece.open_rows)
                piece.answer(piece.open_rows, batch_of(body))
                yield from _settled(waiting)
            else:
                yield from _settled(waiting)
                return

    def _try_alone(self, mode: Mode, pieces: Iterable[_Piece]) -> int:
        """Runs rows that are not settled one at a time, and settles those that are guilty; gives their number.

        Decoding leaves the others as they were; row by row, all are answered.
        """
        guilty = 0
        with _Single(self._nursery, mode, self.plan, self._meter) as single:
            for piece in pieces:
                for row in piece.open_rows:
                    if mode is Mode.DECODE and row in piece.decodable:
                        continue
                    result = single.run(piece.images([row]))
                    if isinstance(result, RowError):
                        guilty += 1
                        log.warning("row found: %s", result)
                        piece.fail(row, result)
                    elif mode is Mode.DECODE:
                        piece.decodable.add(row)
                    else:
                        piece.answer([row], batch_of(result))
        return guilty


class _Single:
    """Runs one row at a time, in a child that is replaced when it dies.

    Args:
        nursery: of the child.
        mode: what is done with a row.
        plan: for its time limit.
        meter: told what the child does.
    """

    def __init__(self, nursery: Nursery, mode: Mode, plan: TaskPlan, meter: Meter) -> None:
        self._nursery = nursery
        self._meter = meter
        self._mode = mode
        self._plan = plan
        self._child: Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.end()

    def run(self, row: pa.RecordBatch) -> bytes | RowError:
        """What the child answers, or what the row is guilty of."""
        for last in (False, True):
            child = self._child = self._child or self._start()
            try:
                child.send(Kind.BATCH, row)
                _, body = child.receive(self._plan.row_timeout)
            except ChildDiedError as death:
                self._child = None
                if death.loading:
                    raise _no_row_is_guilty(death) from death
                if death.timed_out or last:
                    return self._verdict(death)
            else:
                return body
        raise AssertionError  # the second time round returns

    def _start(self) -> Child:
        """A child that is ready for a row."""
        for attempt in range(1, MAX_IDLE_DEATHS + 1):
            child = Child(self._nursery, self._mode, self._plan.row_timeout, self._meter)
            try:
                child.receive()
            except ChildDiedError as death:
                if attempt == MAX_IDLE_DEATHS:
                    raise _no_row_is_guilty(death) from death
            else:
                return child
        raise AssertionError

    def _verdict(self, death: ChildDiedError) -> RowError:
        decoding = self._mode is Mode.DECODE
        culprit = "decoding" if decoding else "decoding or the model"
        if death.timed_out:
            stage = Stage.DECODE if decoding else Stage.INFER
            message = f"{culprit} took longer than {self._plan.row_timeout:g} s (errors.row_timeout), alone"
            return RowError(ErrorCode.TIMEOUT, message, stage=stage)
        return RowError(
            ErrorCode.WORKER_CRASHED, f"{culprit} ended the Python process {death.describe()}, twice, alone"
        )


class _Piece:
    """Some rows of one input batch, until all of them are answered.

    Attributes:
        decodable: rows that are known to survive decoding.
    """

    def __init__(self, batch: pa.RecordBatch, plan: TaskPlan) -> None:
        self.decodable: set[int] = set()
        self._images = batch.select([plan.content])
        self._keys = batch.select(list(plan.keys))
        self._answers: list[pa.RecordBatch] = []
        self._answered: list[int] = []

    @property
    def open_rows(self) -> list[int]:
        """Rows without an answer, in order."""
        answered = set(self._answered)
        return [row for row in range(self._images.num_rows) if row not in answered]

    def images(self, rows: list[int]) -> pa.RecordBatch:
        """The content column of these rows."""
        return self._images if len(rows) == self._images.num_rows else self._images.take(pa.array(rows))

    def answer(self, rows: list[int], result: pa.RecordBatch) -> None:
        """Keeps the `RESULT_COLUMNS` of these rows."""
        if result.num_rows != len(rows):
            raise JobFailedError(f"a guarded process answered {result.num_rows} rows of {len(rows)}")
        self._answers.append(result)
        self._answered += rows

    def fail(self, row: int, error: RowError) -> None:
        """Settles a row as failed."""
        chunk = Chunk(self._images.slice(row, 1), self._images.schema.names[0], ())
        chunk.fail(0, error)
        self.answer([row], next(chunk.to_arrow(Labels(None))))

    def output(self) -> pa.RecordBatch:
        """Keys and results of all rows, in order."""
        results = pa.Table.from_batches(self._answers)
        if len(self._answers) > 1:
            results = results.take(pa.array(np.argsort(self._answered)))
        (result,) = results.combine_chunks().to_batches()
        return pa.RecordBatch.from_arrays(
            [*self._keys.columns, *result.columns], names=[*self._keys.schema.names, *result.schema.names]
        )


def _pieces(batches: Iterable[pa.RecordBatch], plan: TaskPlan) -> Iterator[_Piece]:
    """Each batch in pieces of bounded size."""
    for batch in batches:
        lengths = pc.fill_null(pc.binary_length(batch.column(plan.content)), 0).to_pylist()
        first = size = 0
        for row, length in enumerate(lengths):
            if row > first and (row - first == PIECE_ROWS or size + length > PIECE_BYTES):
                yield _Piece(batch.slice(first, row - first), plan)
                first, size = row, 0
            size += length
        if batch.num_rows:
            yield _Piece(batch.slice(first), plan)


def _settled(waiting: deque[_Piece]) -> Iterator[pa.RecordBatch]:
    """Takes finished pieces from the front."""
    while waiting and not waiting[0].open_rows:
        yield waiting.popleft().output()


def _no_row_is_guilty(death: ChildDiedError) -> Exception:
    if death.loading:
        return ModelError(
            f"opening the model ended the Python process {death.describe()}",
            key="model.path",
            hint="its file is damaged, its framework has a fault, or the executor has too little memory for it",
        )
    return JobFailedError(
        f"guarded processes end {death.describe()} before they take a row",
        hint="the executor's stderr says more; most often there is too little memory",
    )


_idle: _Guard | None = None
"""Of this process: `predict_batch_udf` makes a task of every few rows, and a worker runs many tasks."""


def _take_idle(plan: TaskPlan, facts: TaskFacts) -> _Guard:
    global _idle
    guard, _idle = _idle, None
    if guard is not None and (guard.plan, guard.facts) != (plan, facts):
        guard.close()
        guard = None
    return guard or _Guard(plan, facts)


def _keep_idle(guard: _Guard) -> None:
    global _idle  # noqa: PLW0603 - see there
    close_idle()
    _idle = guard


@atexit.register
def close_idle() -> None:
    """Ends the processes that wait for another task of this worker."""
    global _idle
    guard, _idle = _idle, None
    if guard is not None:
        guard.close()
