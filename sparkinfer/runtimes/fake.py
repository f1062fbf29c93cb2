"""A deterministic model in plain numpy, for tests: it can play an accelerator's latency, memory limit and failures.

Executor side; nothing pickles. Its model file is one JSON object; every key but `num_classes` may be left out:

    num_classes            width of the scores
    input                  {"shape": [null, 3, 8, 8], "dtype": "float32"}: the declared input; a whole number first
                           fixes the batch dimension; without it, whatever preprocess gives
    labels                 list of class labels
    latency_s              seconds that one batch takes on the simulated accelerator, which runs one batch at a time
    blind                  true: does not look at the pixels, every score is 0; an accelerator costs no CPU time
    accelerator            path of a lock file: processes that name the same one share the accelerator
    size_matters           true: scores depend on the size of the batch, as those of kernels chosen by it do: n images
                           add n / 1024 to every score
    memory_limit_images    a batch of more rows raises OutOfDeviceMemoryError
    fail_on, nan_on, crash_on   lists of numbers: a batch with an image whose mean is within 0.001 of one of them raises
                           RuntimeError, gives that row NaN scores, or kills the process (SIGKILL)
    hang_on                likewise: never ends
    log                    path of a file that gets one JSON line {"event": "load" | "infer", "pid", "rows"} per call;
                           opened for appending, so several processes may share it

With `m[j]` the mean of an image's channel j (of `n` channels, in the units of the model input), the score of class c
is `m[c mod n] / (1 + c div n)`: of three classes, a red image gets 0, a green one 1, a blue one 2. The embedding
`channel_means` is m itself.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Lock
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sparkinfer.core.errors import DeviceError, ModelError, OutOfDeviceMemoryError
from sparkinfer.core.model_spec import Signature, TensorInfo
from sparkinfer.core.protocols import LoadRequest, Outputs, Runtime
from sparkinfer.runtimes._batches import Array, check_input, given_input, run_in_chunks, zero_batch

__all__ = ["EMBEDDING", "FakeRuntime"]

EMBEDDING = "channel_means"
_TOLERANCE = 1e-3


class _FakeInput(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    shape: tuple[int | None, ...]
    dtype: str = "float32"


class _FakeModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    num_classes: int = Field(ge=1)
    input: _FakeInput | None = None
    labels: tuple[str, ...] | None = None
    latency_s: float = Field(0.0, ge=0)
    blind: bool = False
    accelerator: str | None = None
    size_matters: bool = False
    memory_limit_images: int | None = Field(None, ge=0)
    fail_on: tuple[float, ...] = ()
    nan_on: tuple[float, ...] = ()
    crash_on: tuple[float, ...] = ()
    hang_on: tuple[float, ...] = ()
    log: str | None = None


class FakeRuntime(Runtime):
    """Runs a `.fake` file: see the module's docstring."""

    def load(self, request: LoadRequest) -> None:
        """Reads the JSON; logs one line."""
        try:
            self._model = _FakeModel.model_validate_json(Path(request.path).read_bytes())
        except (OSError, ValidationError) as error:
            raise ModelError(f"not a fake model: {error}", key="model.path") from error
        if request.device.kind != "cpu":
            raise DeviceError(
                f"the fake runtime cannot use {request.device}: it only pretends to have an accelerator",
                key="model.device",
                allowed=["cpu"],
            )
        if request.embedding not in (None, EMBEDDING):
            raise ModelError(
                f"the model has no output {request.embedding!r}", key="postprocess.embedding", allowed=[EMBEDDING]
            )
        self._preprocess = request.preprocess
        self._wants_embedding = request.embedding is not None
        declared = self._model.input
        self._input = given_input(request.preprocess)
        if declared is not None:
            self._input = TensorInfo(name="input", shape=declared.shape, dtype=declared.dtype)
        check_input(self._input, request.preprocess)
        self._channel_axis = request.preprocess.layout.index("c")
        self._accelerator = Lock()
        self._log("load", 0)

    def infer(self, batch: Array) -> Outputs:
        """Scores and channel means, after the simulated latency and failures; logs one line per batch."""
        fixed_rows = self._input.shape[0]
        if fixed_rows is None:
            scores, means = self._run(batch)
        else:
            scores, means = run_in_chunks(batch, fixed_rows, self._run)
        return Outputs(scores=scores, embedding=means if self._wants_embedding else None)

    @property
    def fixed_batches(self) -> bool:
        """As the file says."""
        return self._model.size_matters

    def _run(self, batch: Array) -> tuple[Array, Array]:
        model = self._model
        self._log("infer", len(batch))
        limit = model.memory_limit_images
        if limit is not None and len(batch) > limit:
            raise OutOfDeviceMemoryError(f"the fake accelerator holds {limit} images, not {len(batch)}")
        with self._one_batch_at_a_time():
            if model.latency_s:
                time.sleep(model.latency_s)
        if model.blind:
            return np.zeros((len(batch), model.num_classes), np.float32), np.zeros((len(batch), 3), np.float32)
        means = _channel_means(batch, self._channel_axis)
        image_means = means.mean(axis=1)
        if _near(image_means, model.crash_on).any():
            os.kill(os.getpid(), signal.SIGKILL)
        if _near(image_means, model.hang_on).any():
            Event().wait()
        if _near(image_means, model.fail_on).any():
            raise RuntimeError("the fake model fails on one of these images")
        channels = means.shape[1]
        classes = np.arange(model.num_classes)
        scores = means[:, classes % channels] / (1 + classes // channels)
        if model.size_matters:
            scores += len(batch) / 1024
        scores[_near(image_means, model.nan_on)] = np.nan
        return scores.astype(np.float32), means.astype(np.float32)

    def signature(self) -> Signature:
        """What the file declares; runs, and logs, one batch of zero images."""
        outputs = self.infer(zero_batch(self._preprocess, self._input, rows=self._input.shape[0] or 2))
        rows = self._input.shape[0]
        embedding = None
        if self._wants_embedding:
            embedding = TensorInfo(name=EMBEDDING, shape=(rows, outputs.embedding.shape[1]), dtype="float32")
        return Signature(
            input=self._input,
            scores=TensorInfo(name="scores", shape=(rows, self._model.num_classes), dtype="float32"),
            embedding=embedding,
            num_classes=outputs.scores.shape[1],
            labels=self._model.labels,
        )

    @contextmanager
    def _one_batch_at_a_time(self) -> Iterator[None]:
        if self._model.accelerator is None:
            with self._accelerator:
                yield
            return
        with Path(self._model.accelerator).open("a") as shared:
            fcntl.flock(shared, fcntl.LOCK_EX)
            yield

    def _log(self, event: str, rows: int) -> None:
        if self._model.log is None:
            return
        line: dict[str, Any] = {"event": event, "pid": os.getpid(), "rows": rows}
        descriptor = os.open(self._model.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, json.dumps(line).encode() + b"\n")
        finally:
            os.close(descriptor)


def _channel_means(batch: Array, channel_axis: int) -> npt.NDArray[np.float64]:
    """Float64 [rows, channels]."""
    others = tuple(axis for axis in (1, 2, 3) if axis != channel_axis)
    means: npt.NDArray[np.float64] = batch.mean(axis=others, dtype=np.float64)
    return means


def _near(means: npt.NDArray[np.float64], values: tuple[float, ...]) -> npt.NDArray[np.bool_]:
    if not values:
        return np.zeros(len(means), dtype=bool)
    near: npt.NDArray[np.bool_] = (np.abs(means[:, None] - np.asarray(values)) < _TOLERANCE).any(axis=1)
    return near
