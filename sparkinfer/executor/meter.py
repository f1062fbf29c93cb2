"""Counts and times what one attempt at a task does. Executor side; live, nothing here pickles.

Nothing is counted under a lock for a single image: decoders note times in their own batch, and they are added up once
for each batch. Times are those of a clock on the wall: a thread that waits for a core takes time too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from threading import Lock
from time import perf_counter
from typing import TypeVar

from sparkinfer.core.telemetry import Figures, Reading

__all__ = ["ImageTimes", "Meter"]

ImageTimes = tuple[int, float, float]
"""One image that was decoded: its compressed bytes, seconds of decoding and of preprocessing (0 where that failed)."""

_Item = TypeVar("_Item")


class Meter:
    """The figures of one attempt at a task. Every method may be called by any thread.

    Attributes:
        overlapped: the model has a thread of its own, so that it can wait for images; where one thread does all, the
            time between two calls of the model is no waiting.
    """

    def __init__(self) -> None:
        self.overlapped = True
        self._lock = Lock()
        self._figures = Figures()
        self._device = ""
        self._batch_size = 0
        self._calls = 0  # of the model, that run now
        self._since = perf_counter()  # the model runs, or stands still

    def chosen(self, device: str) -> None:
        """The device of the model."""
        self._device = device

    def reading(self, batches: Iterable[_Item]) -> Iterator[_Item]:
        """Passes Spark's batches on, and times how long each of them is waited for."""
        batch_iterator = iter(batches)
        while True:
            started = perf_counter()
            batch = next(batch_iterator, None)
            if batch is None:
                return
            self._observe("read", perf_counter() - started)
            yield batch

    def writing(self, results: Iterable[_Item]) -> Iterator[_Item]:
        """Passes results on to Spark, and times how long it takes to accept each of them."""
        for result in results:
            started = perf_counter()
            yield result
            self._observe("write", perf_counter() - started)

    def decoded(self, images: Iterable[ImageTimes], batch_size: int) -> None:
        """A batch was filled.

        Args:
            images: those that were handed to the decoder.
            batch_size: of the next batch.
        """
        with self._lock:
            self._batch_size = batch_size
            decode, preprocess = self._figures.stages["decode"], self._figures.stages["preprocess"]
            for size, decode_seconds, preprocess_seconds in images:
                self._figures.image_bytes += size
                decode.observe(decode_seconds)
                if preprocess_seconds:
                    preprocess.observe(preprocess_seconds)

    @contextmanager
    def inferring(self, images: int) -> Iterator[None]:
        """Around one call of the model."""
        started = perf_counter()
        with self._lock:
            if not self._calls:
                if self.overlapped:
                    self._figures.stages["wait"].observe(started - self._since)
                self._since = started
            self._calls += 1
        try:
            yield
        finally:
            ended = perf_counter()
            with self._lock:
                self._calls -= 1
                self._figures.busy_seconds += ended - self._since
                self._since = ended
                self._figures.stages["infer"].observe(ended - started)
                self._figures.batch_images.observe(images)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Around opening the model."""
        started = perf_counter()
        yield
        ended = perf_counter()
        with self._lock:
            self._figures.model_loads += 1
            self._figures.model_load_seconds += ended - started
            self._since = ended  # nobody waited for images

    def halved(self) -> None:
        """The batch size was halved for want of device memory."""
        with self._lock:
            self._figures.oom_halvings += 1

    def settled(self, rows: int, errors: Mapping[str, int]) -> None:
        """Rows are predicted or have failed, for good.

        Args:
            rows: good and failed.
            errors: failed rows by code.
        """
        with self._lock:
            figures = self._figures
            figures.rows += rows
            for code, count in errors.items():
                figures.errors[code] = figures.errors.get(code, 0) + count

    def add(self, reading: Reading) -> None:
        """Adds what a guarded child has done, but for its rows: what it does with them is not for good."""
        with self._lock:
            self._figures.add(replace(reading.figures, rows=0, errors={}))
            self._device = reading.device or self._device
            self._batch_size = reading.batch_size or self._batch_size

    def read(self) -> Reading:
        """What was done so far."""
        with self._lock:
            return Reading(Figures.sum([self._figures]), self._device, self._batch_size)

    def take(self) -> Reading:
        """What was done since the last time; the meter then starts at zero."""
        with self._lock:
            figures, self._figures = self._figures, Figures()
            return Reading(figures, self._device, self._batch_size)

    def _observe(self, stage: str, seconds: float) -> None:
        with self._lock:
            self._figures.stages[stage].observe(seconds)
