"""The chain, on one page. Executor side; pure: Arrow batches in, Arrow batches out, no Spark and no JVM.

    decode -> preprocess -> batch -> (fetch and open the model, once) -> infer -> postprocess

`run_task` is what `mapInArrow` calls in every Python worker; tests and profilers call it with a list of batches. It
runs the chain in this process, watched; or, once an attempt at the task has failed, in a process of its own (`guard`),
so that no row can end a worker twice.
"""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Iterable, Iterator
from threading import Lock

import numpy as np
import pyarrow as pa

from sparkinfer.core.errors import JobFailedError, encodable
from sparkinfer.core.protocols import Device, LoadRequest, Runtime
from sparkinfer.core.registry import create_runtime
from sparkinfer.executor import taskcontext
from sparkinfer.executor.artifact import materialise
from sparkinfer.executor.batch_size import BatchSize
from sparkinfer.executor.batching import BatchFactory, ModelBatch, slots_that_fit
from sparkinfer.executor.device import resolve_device
from sparkinfer.executor.guard import close_idle, run_guarded
from sparkinfer.executor.inference import Predictor
from sparkinfer.executor.meter import Meter
from sparkinfer.executor.model_cache import get_runtime
from sparkinfer.executor.pipeline import Pipeline
from sparkinfer.executor.plan import TaskPlan
from sparkinfer.executor.report import error_counts
from sparkinfer.executor.rows import Chunk, Labels
from sparkinfer.executor.watchdog import Watch, Watchdog

__all__ = ["open_runtime", "run_chain", "run_task"]

log = logging.getLogger(__name__)


def run_task(batches: Iterable[pa.RecordBatch], plan: TaskPlan, meter: Meter | None = None) -> Iterator[pa.RecordBatch]:
    """Predicts the rows of one partition.

    Args:
        batches: with the columns `plan.keys` and `plan.content` (binary, nullable).
        plan: what to do, as the driver planned it.
        meter: told what is done.

    Yields:
        Batches with `plan.keys` and `core.schema.RESULT_COLUMNS`: one row per input row, in input order.

    Raises:
        ModelError: the model's bytes are not those that the driver inspected.
        DeviceError: the device that was asked for is not there.
        JobFailedError: in place of an error whose text Spark could not send to the driver.
    """
    try:
        yield from _run_attempt(batches, plan, meter or Meter())
    except GeneratorExit:  # Spark stops reading early
        raise
    except BaseException as error:
        text = "".join(traceback.format_exception(error))
        if text == encodable(text):
            raise
        raise JobFailedError(text) from None


def _run_attempt(batches: Iterable[pa.RecordBatch], plan: TaskPlan, meter: Meter) -> Iterator[pa.RecordBatch]:
    batches = meter.reading(batches)
    if plan.guard == "always" or taskcontext.attempt_number():
        for results in run_guarded(batches, plan, meter):
            meter.settled(results.num_rows, error_counts(results))
            yield results
        return
    close_idle()
    with Watchdog(plan.row_timeout) as watch:
        yield from run_chain(batches, plan, watch, meter)


def run_chain(
    batches: Iterable[pa.RecordBatch], plan: TaskPlan, watch: Watch, meter: Meter
) -> Iterator[pa.RecordBatch]:
    """`run_task` in this process, whatever the attempt.

    Args:
        batches: as for `run_task`.
        plan: as for `run_task`.
        watch: told of every image and every call of the model.
        meter: told what is done, and how long it takes.

    Yields:
        As `run_task`.
    """
    labels = Labels(plan.labels)
    device = resolve_device(plan.model.wanted_device, taskcontext.gpu_addresses())
    decoders = _decoders(plan, device)
    meter.chosen(str(device))
    meter.overlapped = decoders > 0
    model = _LazyModel(plan, device, watch, meter)
    pipeline = Pipeline(
        factory=BatchFactory(plan.preprocess, plan.max_image_bytes, watch),
        batch_size=lambda: model.batch_size,
        out_of_memory=model.out_of_memory,
        infer=model.run,
        decoders=decoders,
        # On a GPU the next batch is uploaded while one is computed.
        models=1 if device.kind == "cpu" else 2,
    )
    chunks = (Chunk(batch, plan.content, plan.keys) for batch in batches if batch.num_rows)
    for chunk in pipeline.run(chunks):
        yield from chunk.to_arrow(labels)
    model.finish()


class _LazyModel:
    """Opens the model when the first image is ready for it: a partition of bad rows, or none, loads nothing."""

    def __init__(self, plan: TaskPlan, device: Device, watch: Watch, meter: Meter) -> None:
        self._plan = plan
        self._watch = watch
        self._meter = meter
        self._device = device
        key = (*plan.cache_key, str(device), str(plan.batch.size))
        if key not in _sizes:
            most = slots_that_fit(plan.preprocess)
            _sizes[key] = BatchSize(plan.batch.size, on_cpu=device.kind == "cpu", most=most)
        self._batch_size = _sizes[key]
        self._opening = Lock()
        self._predictor: Predictor | None = None

    @property
    def batch_size(self) -> int:
        """Images of the next batch."""
        return self._batch_size.current

    def out_of_memory(self, images: int) -> None:
        """Notes that there is no memory for a batch of so many."""
        if self._batch_size.out_of_memory(images):
            self._meter.halved()

    def run(self, batch: ModelBatch) -> None:
        """Settles every row of a batch."""
        self._meter.decoded(batch.times, self.batch_size)
        batch.settle_failures()
        for inputs, rows in batch.groups():
            self._open().run(inputs, rows)
        self._meter.settled(len(batch.rows), batch.error_counts())

    def finish(self) -> None:
        """Ends the task."""
        if self._predictor is not None:
            self._predictor.finish()

    def _open(self) -> Predictor:
        with self._opening:
            if self._predictor is None:
                with self._watch.loading():
                    runtime = open_runtime(self._plan, self._device, self._meter)
                    self._batch_size.probe(runtime)
                    if self._watch.warm_up:
                        self._run_zeros(runtime)
                self._predictor = Predictor(runtime, self._plan.postprocess, self._batch_size, self._watch, self._meter)
            return self._predictor

    def _run_zeros(self, runtime: Runtime) -> None:
        """Has the model build and choose what it does at its first call."""
        spec = self._plan.preprocess
        if spec.output_size is not None:
            rows = self._batch_size.current if runtime.fixed_batches else 1
            shape = [int(side or 0) for side in spec.batch_shape(rows)]
            with contextlib.suppress(Exception):  # what is wrong, the first image meets too
                runtime.infer(np.zeros(shape, spec.dtype))


_sizes: dict[tuple[str, ...], BatchSize] = {}
"""Batch sizes by model, device and the size that was asked for: what one task learned serves the next."""


def open_runtime(plan: TaskPlan, device: Device, meter: Meter) -> Runtime:
    """This process's loaded runtime for a plan: loaded once, then kept across tasks and jobs."""

    def load() -> Runtime:
        with meter.loading():
            return load_runtime()

    def load_runtime() -> Runtime:
        path = materialise(plan.artifact, plan.source)
        runtime = create_runtime(plan.model.format)
        runtime.load(
            LoadRequest(
                path=str(path),
                model=plan.model,
                preprocess=plan.preprocess,
                embedding=plan.postprocess.embedding,
                device=device,
                threads=taskcontext.cpus(),
                inside=plan.inside,
                share=True,
            )
        )
        log.info("loaded %s (%s) on %s", plan.model.display_name, plan.artifact.digest[:12], device)
        return runtime

    return get_runtime((*plan.cache_key, str(device)), load, plan.artifact.size)


def _decoders(plan: TaskPlan, device: Device) -> int:
    """Decoder threads: the cores this task may use; none where one core does everything anyway."""
    cores = plan.cores or taskcontext.cpus()
    return 0 if cores == 1 and device.kind == "cpu" else cores
