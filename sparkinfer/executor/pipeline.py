"""Decoding, inference and the exchange with Spark at the same time. Executor side.

The thread that Spark calls reads input and hands results back; decoder threads fill the slots of the next batches;
one model thread (two on a GPU, where one uploads) runs the batches in order. Pillow, numpy and the runtimes release
the interpreter's lock while they work. With one core and no accelerator there is nothing to overlap, and everything
runs in the calling thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

from sparkinfer.executor.batching import BatchFactory, ModelBatch
from sparkinfer.executor.rows import Chunk

__all__ = ["Pipeline"]

BATCHES_IN_FLIGHT = 2
"""One in the model and one being decoded; the one being reserved comes on top."""

MAX_UNDECODED_BYTES = 64 << 20
"""Compressed bytes that wait for a decoder before reading from Spark pauses."""


class Pipeline:
    """Runs the chunks of one task through decoders and model.

    Args:
        factory: makes and fills batches.
        batch_size: capacity of the next batch; asked anew for each.
        out_of_memory: told of a capacity that there is no memory for; `batch_size` must be less then.
        infer: settles all rows of a batch; called in order, by `models` threads.
        decoders: decoder threads; 0 runs everything in the calling thread.
        models: model threads.
    """

    def __init__(
        self,
        factory: BatchFactory,
        batch_size: Callable[[], int],
        out_of_memory: Callable[[int], None],
        infer: Callable[[ModelBatch], None],
        decoders: int,
        models: int = 1,
    ) -> None:
        self._factory = factory
        self._batch_size = batch_size
        self._out_of_memory = out_of_memory
        self._infer = infer
        self._decoders = decoders
        self._models = models

    def run(self, chunks: Iterable[Chunk]) -> Iterator[Chunk]:
        """Gives every chunk back, settled, in input order."""
        if not self._decoders:
            yield from self._run(chunks, _Inline(), _Inline())
            return
        decoders = ThreadPoolExecutor(self._decoders, "sparkinfer-decode")
        model = ThreadPoolExecutor(self._models, "sparkinfer-model")
        try:
            yield from self._run(chunks, decoders, model)
        finally:
            # Also when Spark stops reading early, as after LIMIT, or when the model fails.
            decoders.shutdown(wait=False, cancel_futures=True)
            model.shutdown(wait=True, cancel_futures=True)

    def _run(self, chunks: Iterable[Chunk], decoders: Executor, model: Executor) -> Iterator[Chunk]:
        waiting: deque[Chunk] = deque()
        in_model: deque[Future[None]] = deque()
        undecoded = _Undecoded()
        batch: ModelBatch | None = None
        filling: list[Future[None]] = []
        for chunk in chunks:
            waiting.append(chunk)
            for row, data in enumerate(chunk.images()):
                if batch is None:
                    batch, filling = self._new_batch(), []
                slot = batch.reserve(chunk, row)
                done = decoders.submit(self._factory.fill, batch, slot, data)
                filling.append(done)
                undecoded.add(done, data)
                if batch.full:
                    in_model.append(model.submit(self._finish, batch, filling))
                    batch = None
                    if len(in_model) > BATCHES_IN_FLIGHT + self._models - 1:
                        in_model.popleft().result()
            while in_model and in_model[0].done():
                in_model.popleft().result()
            while waiting and not waiting[0].pending:
                yield waiting.popleft()
        if batch is not None:
            in_model.append(model.submit(self._finish, batch, filling))
        for future in in_model:
            future.result()
            while waiting and not waiting[0].pending:
                yield waiting.popleft()

    def _new_batch(self) -> ModelBatch:
        while True:
            capacity = self._batch_size()
            try:
                return self._factory.new(capacity)
            except MemoryError:
                self._out_of_memory(capacity)

    def _finish(self, batch: ModelBatch, filling: list[Future[None]]) -> None:
        for future in filling:
            future.result()
        self._infer(batch)
        self._factory.recycle(batch)


class _Undecoded:
    """Bounds the compressed bytes that wait for a decoder."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Future[None], int]] = deque()
        self._bytes = 0

    def add(self, future: Future[None], data: memoryview | None) -> None:
        size = data.nbytes if data is not None else 0
        self._waiting.append((future, size))
        self._bytes += size
        while self._waiting and (self._waiting[0][0].done() or self._bytes > MAX_UNDECODED_BYTES):
            oldest, size = self._waiting.popleft()
            oldest.result()
            self._bytes -= size


class _Inline(Executor):
    """Runs at once, in the calling thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """The finished future of `fn(*args, **kwargs)`; raises what it raises."""
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future
