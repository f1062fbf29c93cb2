"""The predictor: padding where results depend on the batch's size, and failures pinned on their rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from sparkinfer.core.model_spec import PostprocessSpec, Signature
from sparkinfer.core.protocols import LoadRequest, Outputs, Runtime
from sparkinfer.executor.batch_size import BatchSize
from sparkinfer.executor.inference import Predictor
from sparkinfer.executor.rows import Chunk, Labels


class Recorder(Runtime):
    """Scores are the inputs; keeps the sizes it saw; fails on 13; forgets some of the results."""

    def __init__(self, *, fixed: bool, results: int | None = None) -> None:
        self.sizes: list[int] = []
        self.fixed = fixed
        self.results = results

    def load(self, request: LoadRequest) -> None: ...

    def infer(self, batch: Any) -> Outputs:
        self.sizes.append(len(batch))
        if (batch == 13).any():
            raise RuntimeError("unlucky")
        if self.results is not None:
            batch = batch[: self.results]
        return Outputs(scores=batch.astype(np.float32), embedding=batch.astype(np.float32))

    def signature(self) -> Signature:
        raise NotImplementedError

    @property
    def fixed_batches(self) -> bool:
        return self.fixed


def predict(runtime: Recorder, values: list[float], size: int) -> list[dict[str, Any]]:
    content = pa.array([b"x"] * len(values), pa.binary())
    chunk = Chunk(pa.record_batch({"content": content}), "content", ())
    predictor = Predictor(
        runtime, PostprocessSpec(activation="none", top_k=1, check=False), BatchSize(size, on_cpu=True)
    )
    predictor.run(np.array([[v, 0] for v in values]), [(chunk, row) for row in range(len(values))])
    assert chunk.pending == 0
    return [row for out in chunk.to_arrow(Labels(None)) for row in out.to_pylist()]


def test_partial_batches_are_padded_where_size_matters() -> None:
    runtime = Recorder(fixed=True)
    rows = predict(runtime, [1, 2, 3], size=8)
    assert runtime.sizes == [8]
    assert [row["confidence"] for row in rows] == [1, 2, 3]
    assert [row["embedding"] for row in rows] == [[1, 0], [2, 0], [3, 0]]


def test_halves_of_a_failing_batch_are_padded_too() -> None:
    runtime = Recorder(fixed=True)
    rows = predict(runtime, [1, 2, 13, 4], size=4)
    assert set(runtime.sizes) == {4}
    assert [row["error_code"] for row in rows] == [None, None, "MODEL_FAILED", None]


def test_results_that_are_as_many_as_the_rows_but_not_as_the_images_are_refused() -> None:
    rows = predict(Recorder(fixed=True, results=3), [1, 2, 3], size=8)
    assert [row["error_message"] for row in rows] == ["the model gave 3 results for 8 images"] * 3


def test_partial_batches_stay_small_where_size_does_not_matter() -> None:
    runtime = Recorder(fixed=False)
    predict(runtime, [1, 2, 3], size=8)
    assert runtime.sizes == [3]
