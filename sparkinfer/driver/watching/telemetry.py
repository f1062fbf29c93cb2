"""What the tasks of a run have told, added up. Driver only; needs no pyspark; safe to ask from any thread.

`Telemetry` takes messages (`driver.receiver`), what Spark says about its tasks (`driver.task_status`) and the rows of
tasks that ended (`executor.report.Tally`), and gives a `Snapshot` to whoever asks: the progress display, the metrics
endpoint, the report.

Two ways of counting, for two questions:

- What is done? `Snapshot.rows` and `errors`: one attempt of every partition: the one that ended, else the one that is
  furthest. When a pass over the input is written, the exact counts of its table take their place.
- What did it take? `Snapshot.figures`: the work of all attempts, whatever became of them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from sparkinfer.core.telemetry import DeviceFigures, Figures, TaskMessage, TaskState
from sparkinfer.driver.watching.attempts import Attempts
from sparkinfer.driver.watching.devices import DeviceRecord, Devices
from sparkinfer.executor.report import Tally

__all__ = ["Sample", "Snapshot", "TaskCounts", "TaskRecord", "Telemetry"]

MAX_RECORDS = 50_000
"""Partitions that are remembered one by one, the latest: some 10 MB."""

MAX_SAMPLES = 1_000
"""Points of the history; when there are more, every second one goes."""


@dataclass(frozen=True)
class TaskCounts:
    """Spark's tasks of the present pass, by Spark's own word.

    Attributes:
        total: of all stages that have begun.
        done: that ended well.
        running: now.
        failed: attempts that failed; Spark tries them again.
    """

    total: int = 0
    done: int = 0
    running: int = 0
    failed: int = 0


@dataclass(frozen=True)
class TaskRecord:
    """What became of one attempt at one partition, in short.

    Attributes:
        stage, partition, attempt_number, host, state: as in `core.telemetry.TaskMessage`.
        seconds: that the attempt took.
        rows: good and failed.
        errors: failed rows by code.
        image_bytes: compressed.
        infer_seconds, decode_seconds, read_seconds: sums of the stages; decoding is done by several threads at once.
    """

    stage: int
    partition: int
    attempt_number: int
    host: str
    state: TaskState
    seconds: float
    rows: int
    errors: Mapping[str, int]
    image_bytes: int
    infer_seconds: float
    decode_seconds: float
    read_seconds: float


@dataclass(frozen=True)
class Sample:
    """One point of the history. All but `busy_share` count from the start of the run.

    Attributes:
        seconds: since the run's first pass began.
        rows: done.
        failed: of these.
        busy_share: share of time in [0, 1], since the sample before, in which a task's model ran; None: nobody said.
    """

    seconds: float
    rows: int
    failed: int
    busy_share: float | None


@dataclass(frozen=True)
class Snapshot:
    """The figures of a run, at one moment. `rows`, `errors`, `figures` and `task_seconds` only grow.

    Attributes:
        run_id: of the run.
        seconds: since the run's first pass began; 0 before.
        active_seconds: of these, in which a pass ran: what throughput is counted on. A run that waits for new input is
            not slow.
        rows: done: good and failed, earlier passes of this run included.
        errors: failed rows by code; their sum is `failed`.
        total_rows: that the run will have done at its end; None where nobody knows.
        tasks: of the present pass.
        figures: the work of all attempts: stages, batches, loads. Its `rows` count work, not results.
        task_seconds: sum of what all attempts have taken so far.
        devices: (host, device) that the tasks of the present pass use, each once, as last told.
        batch_size: largest that a task uses now; None before one is known.
        messages: taken from tasks.
        rejected: messages that were not signed by this run, or damaged.
        note: why figures come only as tasks end; None while tasks tell while they run.
        broken_off: whether the run ended in the middle of a pass: that one's rows are in no table, and not counted.
    """

    run_id: str
    seconds: float = 0.0
    active_seconds: float = 0.0
    rows: int = 0
    errors: Mapping[str, int] = field(default_factory=dict)
    total_rows: int | None = None
    tasks: TaskCounts = field(default_factory=TaskCounts)
    figures: Figures = field(default_factory=Figures)
    task_seconds: float = 0.0
    devices: tuple[tuple[str, DeviceFigures], ...] = ()
    batch_size: int | None = None
    messages: int = 0
    rejected: int = 0
    note: str | None = None
    broken_off: bool = False

    @property
    def failed(self) -> int:
        """Rows with an error code."""
        return sum(self.errors.values())

    def busy_share_since(self, earlier: Snapshot | None = None) -> float | None:
        """Mean share of time in [0, 1] in which a task's model ran; None where nobody said.

        Args:
            earlier: counts from there; from the start by default.
        """
        busy, task_seconds = self.figures.busy_seconds, self.task_seconds
        if earlier is not None:
            busy, task_seconds = busy - earlier.figures.busy_seconds, task_seconds - earlier.task_seconds
        return min(1.0, busy / task_seconds) if task_seconds > 0 else None


class Telemetry:
    """Adds up what is told about one run. Every method may be called by any thread.

    Args:
        run_id: of the run; messages of others are refused.
        clock: seconds that only grow, for tests.
    """

    def __init__(self, run_id: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._run_id = run_id
        self._clock = clock
        self._lock = threading.Lock()
        self._began: float | None = None
        self._active_since: float | None = None
        self._active_seconds = 0.0
        self._settled = Tally()
        self._past = Figures()  # the work of attempts that are over
        self._past_seconds = 0.0
        self._records: deque[TaskRecord] = deque(maxlen=MAX_RECORDS)
        self._history = _History()
        self._total_rows: int | None = None
        self._messages = self._rejected = 0
        self._note: str | None = None
        self._broken_off = False
        self._passes = 0
        self._tasks, self._ended, self._known = TaskCounts(), Tally(), Tally()
        self._attempts = Attempts()
        self._devices = Devices()

    # --- what comes in ---------------------------------------------------------------------------------------------

    def begin(self, total_rows: int | None, known: Mapping[str, int]) -> int:
        """A pass over an input begins; gives its number, which its messages must have.

        Args:
            total_rows: that the run will have done at its end; None where nobody knows.
            known: rows of this pass by the error code that they have before anything is read.
        """
        with self._lock:
            self._active_since = self._clock()
            self._began = self._active_since if self._began is None else self._began
            self._total_rows = total_rows
            self._passes += 1
            self._tasks, self._ended = TaskCounts(), Tally()
            self._known = Tally(sum(known.values()), dict(known))
            self._attempts = Attempts()
            return self._passes

    def take(self, message: TaskMessage) -> None:
        """A task's news. Those that are late, or of a pass that is over, change nothing."""
        with self._lock:
            self._messages += 1
            if (message.run_id, message.pass_number) == (self._run_id, self._passes) and self._active_since is not None:
                self._devices.hear(message)
                for over in self._attempts.take(message):
                    self._file(over)

    def reject(self) -> None:
        """Something came that this run's tasks have not signed."""
        with self._lock:
            self._rejected += 1

    def hear_spark(self, pass_number: int, tasks: TaskCounts, ended: Tally) -> None:
        """Spark's own news, about every second: this also makes a point of the history.

        Args:
            pass_number: of the pass that they are of; of one that is over they change nothing.
            tasks: of the pass.
            ended: rows of those tasks that ended.
        """
        with self._lock:
            if pass_number != self._passes or self._active_since is None:
                return
            self._tasks, self._ended = tasks, ended
            self._history.add(self._snapshot())

    def settle(self, exact: Tally) -> None:
        """The present pass is over and written: these are its rows.

        Args:
            exact: counted in the table.
        """
        with self._lock:
            self._end_pass(exact)

    def break_off(self) -> None:
        """The run ends. If that is in the middle of a pass, its rows are in no table."""
        with self._lock:
            if self._active_since is not None:
                self._end_pass(Tally())
                self._broken_off = True

    def degrade(self, note: str | None) -> None:
        """Notes why figures come only as tasks end; None: they come while tasks run."""
        with self._lock:
            self._note = note

    # --- what is asked ---------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The figures now; a copy."""
        with self._lock:
            return self._snapshot()

    def records(self) -> list[TaskRecord]:
        """Attempts that are over, in the order of their ends: the latest `MAX_RECORDS` of all passes.

        Of a partition that was tried several times there are several.
        """
        with self._lock:
            return list(self._records)

    def devices(self) -> list[DeviceRecord]:
        """The devices of all passes, each once, with what they did."""
        with self._lock:
            return self._devices.records(self._attempts.running.values())

    def history(self) -> list[Sample]:
        """Throughput over time: at most `MAX_SAMPLES` points, evenly spread."""
        with self._lock:
            return list(self._history.samples)

    # --- under the lock --------------------------------------------------------------------------------------------

    def _end_pass(self, exact: Tally) -> None:
        for message in self._attempts.running.values():
            self._file(message)
        self._settled.add(Tally(exact.rows, exact.errors))
        self._active_seconds, self._active_since = self._active(), None
        self._tasks = replace(self._tasks, running=0)
        self._ended, self._known, self._attempts = Tally(), Tally(), Attempts()
        self._history.add(self._snapshot())

    def _file(self, message: TaskMessage) -> None:
        """Keeps an attempt that is over."""
        figures = message.figures
        self._past.add(figures)
        self._past_seconds += message.seconds
        self._devices.settle(message)
        self._records.append(
            TaskRecord(
                stage=message.stage,
                partition=message.partition,
                attempt_number=message.attempt_number,
                host=message.host,
                state=message.state,
                seconds=message.seconds,
                rows=figures.rows,
                errors=figures.errors,
                image_bytes=figures.image_bytes,
                infer_seconds=figures.stages["infer"].total,
                decode_seconds=figures.stages["decode"].total,
                read_seconds=figures.stages["read"].total,
            )
        )

    def _snapshot(self) -> Snapshot:
        running = self._attempts.running.values()
        # Those of tasks that ended are more than was told where messages were lost, or none come.
        told = self._attempts.counts
        counts = Tally()
        for part in (self._settled, self._known, told if told.rows >= self._ended.rows else self._ended):
            counts.add(Tally(part.rows, part.errors))
        return Snapshot(
            run_id=self._run_id,
            seconds=0.0 if self._began is None else self._clock() - self._began,
            active_seconds=self._active(),
            rows=counts.rows,
            errors=counts.errors,
            total_rows=self._total_rows,
            tasks=self._tasks,
            figures=Figures.sum([self._past, *(message.figures for message in running)]),
            task_seconds=self._past_seconds + sum(message.seconds for message in running),
            devices=tuple(self._attempts.devices.values()),
            batch_size=self._attempts.batch_size,
            messages=self._messages,
            rejected=self._rejected,
            note=self._note,
            broken_off=self._broken_off,
        )

    def _active(self) -> float:
        running = 0.0 if self._active_since is None else self._clock() - self._active_since
        return self._active_seconds + running


class _History:
    """Points of the run, evenly spread, bounded in number."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self._last: Snapshot | None = None
        self._interval_s = 0.0

    def add(self, now: Snapshot) -> None:
        """Keeps a point, unless the one before is too near."""
        if self._last is not None and now.seconds - self._last.seconds < self._interval_s:
            return
        self.samples.append(Sample(now.seconds, now.rows, now.failed, now.busy_share_since(self._last)))
        self._last = now
        if len(self.samples) > MAX_SAMPLES:
            self.samples = self.samples[::2]
            self._interval_s = now.seconds / len(self.samples)
