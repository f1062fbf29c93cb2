"""Daft, native runner: a class UDF with a batch method, as its guide to batch inference recommends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import daft
import pyarrow as pa
from daft import DataType, col

from tests.benchmarks.contestants.job import Job, RunJob, contend
from tests.benchmarks.contestants.kernel import Classifier

RESULT = DataType.struct({"predicted_class_idx": DataType.int32(), "confidence": DataType.float32()})


def _udf(job: Job) -> Any:
    # One instance per core, each a process of its own: threads of one process would share the interpreter's lock.
    @daft.cls(max_concurrency=job.workers, use_process=True)
    class Predictor:
        def __init__(self) -> None:
            self._classifier = Classifier(job.onnx, job.recipe, job.batch_size)

        @daft.method.batch(return_dtype=RESULT, unnest=True, batch_size=job.batch_size)  # type: ignore[untyped-decorator]
        def predict(self, content: daft.Series) -> pa.Array:
            best, confidence = self._classifier(content.to_pylist())
            return pa.StructArray.from_arrays(
                [pa.array(best), pa.array(confidence)], names=["predicted_class_idx", "confidence"]
            )

    return Predictor()


@contextmanager
def _open_session(job: Job) -> Iterator[RunJob]:
    daft.set_runner_native()
    predictor = _udf(job)

    def run(output: Path) -> None:
        if job.stored == "folder":
            frame = daft.from_glob_path(f"{job.images}/*.jpg").with_column("content", col("path").download())
        else:
            frame = daft.read_parquet(f"{job.images}/*.parquet")
        frame.select(col("path"), predictor.predict(col("content"))).write_parquet(str(output))

    yield run


if __name__ == "__main__":
    contend(_open_session)
