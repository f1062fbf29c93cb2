"""Where each millisecond goes: sparkinfer's executor chain on one core, stage by stage; runs in its environment.

    python -m tests.benchmarks.stages JOB.json ROWS

Prints JSON: milliseconds of processor time per image by stage. Timers stand around public functions, and count the
calling thread's own processor time, so that stages which overlap in threads are not counted twice.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from sparkinfer.core.model_spec import Artifact, ModelSpec
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.core.registry import create_runtime
from sparkinfer.executor import decode as decode_module
from sparkinfer.executor.plan import TaskPlan
from sparkinfer.executor.preprocess import Preprocessor
from sparkinfer.executor.task import run_task
from tests.benchmarks.contestants.job import Job

STAGES = ("decode", "resize and crop", "normalise and pack", "inference", "rest")


class StageClock:
    """Adds up processor time by stage. A stage that runs inside another is taken off the outer one."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._lock = threading.Lock()
        self._inner = threading.local()

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, with a timer around it."""

        @wraps(function)
        def around(*args: Any, **kwargs: Any) -> Any:
            outer, self._inner.seconds = getattr(self._inner, "seconds", 0.0), 0.0
            started = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                taken = time.thread_time() - started
                with self._lock:
                    self.seconds[stage] += taken - self._inner.seconds
                self._inner.seconds = outer + taken

        return around


def measure(job: Job, rows: int) -> dict[str, float]:
    """Milliseconds per image by stage, of a second pass over the images: the first one loads and warms everything."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    batches = list(_batches(job, rows))
    plan = _plan(job)
    list(run_task(batches, plan))
    clock = StageClock()
    with ExitStack() as patches:
        for holder, name, stage in (
            *((module, "decode", "decode") for module in _holders(decode_module.decode)),
            (Image.Image, "resize", "resize and crop"),
            (Image.Image, "crop", "resize and crop"),
            (Preprocessor, "write", "normalise and pack"),
            (type(create_runtime(plan.model.format)), "infer", "inference"),
        ):
            patches.enter_context(mock.patch.object(holder, name, clock.timed(stage, getattr(holder, name))))
        started = time.process_time()
        done = sum(batch.num_rows for batch in run_task(batches, plan))
        total = time.process_time() - started
    unseen = [stage for stage in ("decode", "inference") if not clock.seconds[stage]]
    if unseen:
        raise RuntimeError(f"the chain never called what is timed as {', '.join(unseen)}")
    clock.seconds["rest"] = total - sum(clock.seconds.values())
    return {stage: 1000 * clock.seconds[stage] / done for stage in STAGES}


def _holders(function: Callable[..., Any]) -> list[Any]:
    """The executor's modules that hold a function by its own name."""
    modules = [module for name, module in sys.modules.items() if name.startswith("sparkinfer.executor.")]
    return [module for module in modules if getattr(module, function.__name__, None) is function]


def _batches(job: Job, rows: int) -> Iterator[pa.RecordBatch]:
    if job.stored == "folder":
        files = sorted(Path(job.images).glob("*.jpg"))[:rows]
        yield pa.record_batch({"path": [p.name for p in files], "content": [p.read_bytes() for p in files]})
        return
    for part in sorted(Path(job.images).glob("*.parquet")):
        for batch in pq.ParquetFile(part).iter_batches(batch_size=64, columns=["path", "content"]):
            if rows <= 0:
                return
            yield batch.slice(0, rows)
            rows -= batch.num_rows


def _plan(job: Job) -> TaskPlan:
    model = Path(job.onnx)
    content = model.read_bytes()
    return TaskPlan(
        model=ModelSpec(path=str(model), format="onnx", device="cpu"),
        preprocess=PreprocessSpec.model_validate(asdict(job.recipe)),
        artifact=Artifact(digest=hashlib.sha256(content).hexdigest(), size=len(content), suffix=model.suffix),
        source=lambda: content,
        num_classes=1000,
    )


if __name__ == "__main__":
    json.dump(measure(Job.load(Path(sys.argv[1])), int(sys.argv[2])), sys.stdout)
