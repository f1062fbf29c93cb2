"""A model batch through the runtime, with every failure pinned on the rows that cause it. Executor side."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from sparkinfer.core.errors import ErrorCode, OutOfDeviceMemoryError, RowError, Stage, to_row_error
from sparkinfer.core.model_spec import PostprocessSpec
from sparkinfer.core.protocols import Outputs, Runtime
from sparkinfer.executor.batch_size import BatchSize
from sparkinfer.executor.batching import Row, Tensor
from sparkinfer.executor.meter import Meter
from sparkinfer.executor.postprocess import top_k
from sparkinfer.executor.rows import Chunk
from sparkinfer.executor.sanity import Sanity
from sparkinfer.executor.watchdog import Watch

__all__ = ["Predictor"]


class Predictor:
    """Runs model inputs and settles their rows.

    Args:
        runtime: loaded.
        postprocess: scores to columns.
        batch_size: told what ran and what did not fit.
        watch: told of every call of the model.
        meter: told of it too.
    """

    def __init__(
        self,
        runtime: Runtime,
        postprocess: PostprocessSpec,
        batch_size: BatchSize,
        watch: Watch | None = None,
        meter: Meter | None = None,
    ) -> None:
        self._runtime = runtime
        self._watch = watch or Watch()
        self._meter = meter or Meter()
        self._postprocess = postprocess
        self._batch_size = batch_size
        self._sanity = Sanity(postprocess.activation) if postprocess.check else None

    def run(self, inputs: Tensor, rows: list[Row]) -> None:
        """Predicts `rows`, none of which is left pending.

        A batch that fails is halved until the rows that cause it stand alone; one that does not fit in memory lowers
        the batch size too, for good.

        Args:
            inputs: [n, ...], n >= 1.
            rows: n rows.

        Raises:
            ModelError: the first answers make no sense (`sanity`).
        """
        images = self._batch_size.current if self._runtime.fixed_batches else len(rows)
        if images < len(rows):  # reserved before the size sank
            self._run_pieces(inputs, rows, images)
            return
        started = time.perf_counter()
        try:
            with self._watch.inferring(), self._meter.inferring(len(rows)):
                outputs = self._infer(inputs, images)
        except Exception as error:
            self._failed(error, inputs, rows, images)
        else:
            self._batch_size.ran(len(rows), time.perf_counter() - started)
            self._settle(inputs, outputs, rows)

    def finish(self) -> None:
        """Ends a task.

        Raises:
            ModelError: its answers make no sense (`sanity`).
        """
        if self._sanity is not None:
            self._sanity.finish()

    def _infer(self, inputs: Tensor, images: int) -> Outputs:
        """Runs the model on `images` images, of which those that `inputs` lacks are zeros; gives the inputs' results.

        Where results depend on the size, nothing smaller than the whole size will do: kernels, and with them the last
        bits, are others at 8 images than at 16, and a row would depend on how many of its neighbours failed, crashed
        (then it runs alone) or came with it in this task. What padding may cost, `BatchSize` bounds.
        """
        rows = len(inputs)
        if images > rows:
            padded = np.zeros((images, *inputs.shape[1:]), inputs.dtype)
            padded[:rows] = inputs
            inputs = padded
        outputs = self._runtime.infer(inputs)
        if len(outputs.scores) != images:
            raise RowError(ErrorCode.MODEL_FAILED, f"the model gave {len(outputs.scores)} results for {images} images")
        return Outputs(outputs.scores[:rows], None if outputs.embedding is None else outputs.embedding[:rows])

    def _failed(self, error: Exception, inputs: Tensor, rows: list[Row], images: int) -> None:
        """Tries again with less, or gives the row up: `images` went through the model, padding and all."""
        if isinstance(error, OutOfDeviceMemoryError | MemoryError) and images > 1:
            if self._batch_size.out_of_memory(images):
                self._meter.halved()
            self._run_pieces(inputs, rows, images // 2)
        elif len(rows) > 1:
            self._run_pieces(inputs, rows, -(-len(rows) // 2))
        else:
            chunk, row = rows[0]
            chunk.fail(row, to_row_error(error, Stage.INFER))

    def _run_pieces(self, inputs: Tensor, rows: list[Row], most: int) -> None:
        for start in range(0, len(rows), most):
            self.run(inputs[start : start + most], rows[start : start + most])

    def _settle(self, inputs: Tensor, outputs: Outputs, rows: list[Row]) -> None:
        scores = np.asarray(outputs.scores, np.float32)
        if self._sanity is not None:
            self._sanity.look(inputs, scores)
        embedding = None if outputs.embedding is None else np.asarray(outputs.embedding, np.float32)
        finite: NDArray[np.bool_] = np.asarray(np.isfinite(scores).all(axis=1))
        if embedding is not None:
            finite = np.logical_and(finite, np.isfinite(embedding).all(axis=1))
        for slot in np.flatnonzero(~finite):
            chunk, row = rows[slot]
            chunk.fail(row, RowError(ErrorCode.NON_FINITE_OUTPUT, "the model answered NaN or infinity"))
        for chunk, slots in _by_chunk(rows, finite).items():
            top = top_k(scores[slots], self._postprocess)
            chunk.succeed([rows[s][1] for s in slots], top, None if embedding is None else embedding[slots])


def _by_chunk(rows: list[Row], wanted: NDArray[np.bool_]) -> dict[Chunk, list[int]]:
    slots: dict[Chunk, list[int]] = {}
    for slot in np.flatnonzero(wanted):
        slots.setdefault(rows[slot][0], []).append(int(slot))
    return slots
