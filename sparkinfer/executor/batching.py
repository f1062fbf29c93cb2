"""Model batches: slots that images are decoded into, and the rows they belong to. Executor side.

A slot is reserved in input order and filled later, perhaps by another thread, so that decoding needs no lock and the
order of rows does not depend on who is faster. A row that fails leaves a gap, closed before the model sees the batch.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterator
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from sparkinfer.core.errors import ErrorCode, RowError, Stage, to_row_error
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.executor.decode import decoder_of, pillow_settings
from sparkinfer.executor.meter import ImageTimes
from sparkinfer.executor.preprocess import Preprocessor
from sparkinfer.executor.rows import Chunk
from sparkinfer.executor.watchdog import Watch

__all__ = ["MAX_BATCH_BYTES", "BatchFactory", "ModelBatch", "Row", "Tensor", "slots_that_fit"]

MAX_BATCH_BYTES = 1 << 30
"""Of one batch's inputs, of which a task holds three or four: 1,783 float32 images of 224 x 224. No device gains from
more than a thousand images at once."""

Tensor = NDArray[np.generic]
Row = tuple[Chunk, int]


class ModelBatch:
    """Up to `capacity` images on their way into the model.

    Args:
        capacity: slots.
        tensor: [at least capacity, ...] when every image comes out in one shape, else None.

    Attributes:
        times: of the images that were handed to the decoder, in any order.
    """

    def __init__(self, capacity: int, tensor: Tensor | None) -> None:
        self.capacity = capacity
        self.tensor = tensor
        self.rows: list[Row] = []
        self.times: list[ImageTimes] = []  # appended to by many threads: a list takes no harm
        self._images: dict[int, Tensor] = {}
        self._errors: dict[int, RowError] = {}

    @property
    def full(self) -> bool:
        """True when no slot is left."""
        return len(self.rows) == self.capacity

    def reserve(self, chunk: Chunk, row: int) -> int:
        """The next slot, for this row."""
        self.rows.append((chunk, row))
        return len(self.rows) - 1

    def fail(self, slot: int, error: RowError) -> None:
        """Notes that this slot's row cannot be predicted. Any thread."""
        # A copy without a traceback: its frames hold the picture as far as it came.
        self._errors[slot] = RowError(error.code, error.message, stage=error.stage)

    def put(self, slot: int, image: Tensor) -> None:
        """Keeps an image of a shape of its own. Any thread."""
        self._images[slot] = image

    def settle_failures(self) -> None:
        """Tells the chunks about the slots that failed."""
        for slot, error in self._errors.items():
            chunk, row = self.rows[slot]
            chunk.fail(row, error)

    def error_counts(self) -> dict[str, int]:
        """Rows that are settled as failed, by code."""
        return dict(Counter(error.code for chunk, row in self.rows if (error := chunk.error_of(row)) is not None))

    def groups(self) -> Iterator[tuple[Tensor, list[Row]]]:
        """Model inputs of one shape each, [n, ...] with n >= 1, and their rows; failed slots left out."""
        good = [slot for slot in range(len(self.rows)) if slot not in self._errors]
        if self.tensor is not None:
            if good:
                inputs = self.tensor[: len(good)] if len(good) == len(self.rows) else self.tensor[good]
                yield inputs, [self.rows[slot] for slot in good]
            return
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for slot in good:
            by_shape.setdefault(self._images[slot].shape, []).append(slot)
        for slots in by_shape.values():
            yield np.stack([self._images[slot] for slot in slots]), [self.rows[slot] for slot in slots]


def slots_that_fit(spec: PreprocessSpec) -> int:
    """Images in `MAX_BATCH_BYTES`, at least one; without a bound where their size is their own."""
    if spec.output_size is None:
        return sys.maxsize
    one = math.prod(int(side or 0) for side in spec.batch_shape(1)) * np.dtype(spec.dtype).itemsize
    return max(1, MAX_BATCH_BYTES // one)


class BatchFactory:
    """Makes batches, fills their slots, and uses their memory again.

    Args:
        spec: geometry and arithmetic of a model input.
        max_image_bytes: longer images become TOO_LARGE.
        watch: told of every image.
    """

    def __init__(self, spec: PreprocessSpec, max_image_bytes: int, watch: Watch | None = None) -> None:
        self._spec = spec
        self._watch = watch or Watch()
        self._max_image_bytes = max_image_bytes
        self._preprocessor = Preprocessor(spec)
        self._decode = decoder_of(spec)
        self._free: list[Tensor] = []

    def new(self, capacity: int) -> ModelBatch:
        """An empty batch, in memory given back by `recycle` where it suffices.

        Raises:
            MemoryError: there is not enough for so many images. A single one is tried when it comes.
        """
        if self._spec.output_size is None:
            return ModelBatch(capacity, None)
        while self._free:
            tensor = self._free.pop()
            if len(tensor) >= capacity:
                return ModelBatch(capacity, tensor)
        shape = [int(side or 0) for side in self._spec.batch_shape(capacity)]
        try:
            return ModelBatch(capacity, np.empty(shape, self._preprocessor.dtype))
        except MemoryError:
            if capacity > 1:
                raise
            return ModelBatch(capacity, None)

    def recycle(self, batch: ModelBatch) -> None:
        """Takes a batch's memory back, once the model has read it."""
        if batch.tensor is not None:
            self._free.append(batch.tensor)

    def fill(self, batch: ModelBatch, slot: int, data: memoryview | None) -> None:
        """Decodes and preprocesses one image into its slot, or notes why not. Any thread; never raises."""
        with self._watch.decoding(), pillow_settings:
            self._fill(batch, slot, data)

    def _fill(self, batch: ModelBatch, slot: int, data: memoryview | None) -> None:
        stage = Stage.DECODE
        started = decoded = 0.0
        try:
            data = self._check(data)
            started = perf_counter()
            image = self._decode(data, self._spec)
            decoded = perf_counter()
            stage = Stage.PREPROCESS
            if batch.tensor is not None:
                self._preprocessor.write(image, batch.tensor[slot])
            else:
                own = np.empty(self._preprocessor.slot_shape(image), self._preprocessor.dtype)
                self._preprocessor.write(image, own)
                batch.put(slot, own)
        except Exception as error:
            batch.fail(slot, to_row_error(error, stage))
        if data is not None and started:
            ended = perf_counter()
            batch.times.append((data.nbytes, (decoded or ended) - started, ended - decoded if decoded else 0.0))

    def _check(self, data: memoryview | None) -> memoryview:
        if data is None:
            raise RowError(ErrorCode.NULL_CONTENT, "the content is null")
        if not data.nbytes:
            raise RowError(ErrorCode.EMPTY, "the content has zero bytes")
        if data.nbytes > self._max_image_bytes:
            raise RowError(
                ErrorCode.TOO_LARGE, f"{data.nbytes:,} bytes, allowed are {self._max_image_bytes:,} (source.max_bytes)"
            )
        return data
