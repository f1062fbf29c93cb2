"""What a task tells the driver while it runs. Both sides; plain data that pickles and travels as JSON.

A `TaskMessage` holds the whole state of one attempt at one task so far, so a message that is lost, or comes late or
twice, does no harm: the next one has everything. All figures only grow while a task runs.

    Meter (executor) -> TaskMessage -> ZeroMQ -> driver.telemetry -> Snapshot -> display, metrics, report

Durations and batch sizes are counted in fixed buckets. Buckets of many tasks and hosts add up exactly, and percentiles
and Prometheus histograms come out of the same counts.
"""

from __future__ import annotations

import bisect
import functools
import hmac
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from typing import ClassVar, Self

from pydantic import TypeAdapter, ValidationError

__all__ = [
    "MAX_MESSAGE_BYTES",
    "STAGES",
    "DeviceFigures",
    "Figures",
    "Histogram",
    "Reading",
    "SecondsHistogram",
    "SizeHistogram",
    "TaskMessage",
    "TaskState",
    "pack",
    "unpack",
]

STAGES = ("read", "decode", "preprocess", "wait", "infer", "write")
"""What is timed, in the order of the chain:

- read: for each batch of rows, how long the task waits until Spark hands it over;
- decode, preprocess: of each image;
- wait: how long the model stands still for want of images, each time it does; not counted where one thread does all;
- infer: of each call of the model, with what brings its input to the device and its answer back;
- write: for each batch of results, how long Spark takes to accept it.

Stages overlap in threads, so their sum may exceed the time that passes.
"""

MAX_MESSAGE_BYTES = 32 << 10
"""Of a packed message. One is 2 to 3 kB; longer ones are not read."""

_MAC_BYTES = 32


def _e6(first: int, last: int) -> tuple[float, ...]:
    """Six steps a decade, from 10**first to 10**last: the preferred numbers E6 of IEC 60063, nearly even in log."""
    steps = (1.0, 1.5, 2.2, 3.3, 4.7, 6.8)
    return (*(float(f"{step}e{power}") for power in range(first, last) for step in steps), float(f"1e{last}"))


@dataclass
class Histogram:
    """Counts of values in fixed buckets. Use a subclass: it has the bounds.

    Attributes:
        bounds: upper bound of each bucket, ascending; a value lies in the first bucket whose bound it does not exceed.
        counts: values in each bucket, and at the end those above the last bound: [len(bounds) + 1].
        total: sum of all values.
    """

    bounds: ClassVar[tuple[float, ...]] = ()

    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        if not self.counts:
            self.counts = [0] * (len(self.bounds) + 1)
        elif len(self.counts) != len(self.bounds) + 1:
            raise ValueError(f"{len(self.counts)} buckets, expected {len(self.bounds) + 1}")

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)

    @property
    def mean(self) -> float | None:
        """Mean value; None without values."""
        count = self.count
        return self.total / count if count else None

    def observe(self, value: float) -> None:
        """Counts a value. Not safe in several threads at once."""
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, more: Histogram) -> None:
        """Adds the values of another one with the same bounds."""
        self.counts = [one + other for one, other in zip(self.counts, more.counts, strict=True)]
        self.total += more.total

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """(upper bound, values up to it) for each bucket, the last one infinite: what Prometheus calls `le`."""
        return zip((*self.bounds, float("inf")), accumulate(self.counts), strict=True)

    def quantile(self, share: float) -> float | None:
        """The value below which this share of the values lies; None without values.

        Exact to the bucket, whose inside is taken as evenly filled, in the logarithm where its lower bound is above
        zero. Values above the last bound count as that bound.

        Args:
            share: in [0, 1]: 0.95 for P95.
        """
        count = self.count
        if not count:
            return None
        rank, before = share * count, 0
        for number, inside in enumerate(self.counts[:-1]):
            if inside and before + inside >= rank:
                part = max(0.0, rank - before) / inside
                upper = self.bounds[number]
                lower = self.bounds[number - 1] if number else 0.0
                return lower * (upper / lower) ** part if lower else upper * part
            before += inside
        return self.bounds[-1]


@dataclass
class SecondsHistogram(Histogram):
    """Durations, from 0.1 ms to 1,000 s; neighbouring bounds are some 1.47 times apart."""

    bounds: ClassVar[tuple[float, ...]] = _e6(-4, 3)


@dataclass
class SizeHistogram(Histogram):
    """Images in a call of the model, by powers of two up to the largest `batch.size`."""

    bounds: ClassVar[tuple[float, ...]] = tuple(float(1 << power) for power in range(17))


def _stages() -> dict[str, SecondsHistogram]:
    return {stage: SecondsHistogram() for stage in STAGES}


@dataclass
class Figures:
    """What was done. Everything adds up over tasks and only grows.

    Attributes:
        rows: good and failed, settled; Spark gets them a little later, in larger batches.
        errors: failed rows by code (`core.errors.ErrorCode`).
        image_bytes: compressed, handed to the decoder.
        stages: seconds by stage: every one of `STAGES`.
        batch_images: images in each call of the model; `count` is the number of calls, `total` of images.
        oom_halvings: times the batch size was halved for want of device memory.
        model_loads: models opened; none where the process had it open from an earlier task.
        model_load_seconds: spent on that.
        busy_seconds: in which at least one call of the model ran.
    """

    rows: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    image_bytes: int = 0
    stages: dict[str, SecondsHistogram] = field(default_factory=_stages)
    batch_images: SizeHistogram = field(default_factory=SizeHistogram)
    oom_halvings: int = 0
    model_loads: int = 0
    model_load_seconds: float = 0.0
    busy_seconds: float = 0.0

    @property
    def failed(self) -> int:
        """Rows with an error code."""
        return sum(self.errors.values())

    def add(self, more: Figures) -> None:
        """Adds the figures of another task."""
        self.rows += more.rows
        for code, count in more.errors.items():
            self.errors[code] = self.errors.get(code, 0) + count
        self.image_bytes += more.image_bytes
        for stage, seconds in more.stages.items():
            self.stages[stage].add(seconds)
        self.batch_images.add(more.batch_images)
        self.oom_halvings += more.oom_halvings
        self.model_loads += more.model_loads
        self.model_load_seconds += more.model_load_seconds
        self.busy_seconds += more.busy_seconds

    @classmethod
    def sum(cls, parts: Sequence[Figures]) -> Self:
        """New figures with all of `parts` in them."""
        total = cls()
        for part in parts:
            total.add(part)
        return total


@dataclass(frozen=True)
class DeviceFigures:
    """The device that a task's model runs on, as it is now.

    Attributes:
        name: cpu, or cuda:N as the process counts.
        uuid: of a GPU, where it is known: processes that share a GPU have the same.
        memory_used_bytes: of the device, by all processes; None where nobody can say.
        memory_total_bytes: of the device; None where nobody can say.
        utilisation: share of time in [0, 1] in which something ran on the GPU, by NVML; None where nobody can say.
    """

    name: str = "cpu"
    uuid: str | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    utilisation: float | None = None

    @property
    def identity(self) -> str:
        """What tells it from the others of its host."""
        return self.uuid or self.name


class TaskState(StrEnum):
    """How an attempt at a task stands, as it says itself. One that is killed says nothing more."""

    RUNNING = "running"
    ENDED = "ended"
    FAILED = "failed"


@dataclass(frozen=True)
class TaskMessage:
    """The state of one attempt at one task.

    Attributes:
        run_id: of the job's run.
        pass_number: of the run's pass over an input, counted by the driver: a run with snapshots has several.
        stage: Spark's number of the stage.
        partition: number of the partition in its stage.
        attempt: Spark's number of this attempt (`TaskContext.taskAttemptId`), unique in the application.
        attempt_number: attempts at the same task before this one.
        host: where it runs.
        pid: of the Python process that Spark started for it.
        sequence: counts the messages of the attempt from 1; of two, the one with the higher number is true.
        state: running, ended or failed.
        started: Unix time at which the attempt began, by the executor's clock, seconds.
        seconds: since then; up to the end, where it has ended.
        engine: arrow, pandas or predict_batch_udf. The latter cannot see the end of a task and stays `running`.
        cores: that the task decodes on.
        batch_size: images of the next batch for the model.
        device: of the model; None before it is chosen.
        figures: since the attempt began.
    """

    run_id: str
    pass_number: int
    stage: int
    partition: int
    attempt: int
    attempt_number: int
    host: str
    pid: int
    sequence: int
    state: TaskState
    started: float
    seconds: float
    engine: str
    cores: int
    batch_size: int
    figures: Figures
    device: DeviceFigures | None = None


@dataclass(frozen=True)
class Reading:
    """What a task's meter shows at one moment; also how a guarded child tells its worker.

    Attributes:
        figures: a copy.
        device: of the model, as `core.protocols.Device` writes itself; "" before it is chosen.
        batch_size: of the next batch; 0 before it is known.
    """

    figures: Figures
    device: str = ""
    batch_size: int = 0

    def to_json(self) -> bytes:
        """As text."""
        return _readings().dump_json(self)

    @staticmethod
    def from_json(text: bytes) -> Reading:
        """What `to_json` wrote."""
        return _readings().validate_json(text)


@functools.cache
def _messages() -> TypeAdapter[TaskMessage]:
    """Made when the first message is: it takes some milliseconds, which a worker's start need not wait for."""
    return TypeAdapter(TaskMessage)


@functools.cache
def _readings() -> TypeAdapter[Reading]:
    return TypeAdapter(Reading)


def pack(message: TaskMessage, token: bytes) -> bytes:
    """The message as bytes that only a holder of the token can make; the token itself is not in them.

    Returns:
        HMAC-SHA256 of the JSON text under the token (RFC 2104), then the text. It is signed, not encrypted.
    """
    text = _messages().dump_json(message)
    return hmac.digest(token, text, "sha256") + text


def unpack(data: bytes, token: bytes) -> TaskMessage:
    """The message that `pack` made.

    Raises:
        ValueError: it is signed with another token, or it is no message.
    """
    mac, text = data[:_MAC_BYTES], data[_MAC_BYTES:]
    if not hmac.compare_digest(mac, hmac.digest(token, text, "sha256")):
        raise ValueError("a message that this job's tasks did not sign")
    try:
        return _messages().validate_json(text)
    except ValidationError as error:
        raise ValueError(f"no message of a task: {error}") from error
