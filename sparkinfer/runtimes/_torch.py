"""What the two torch runtimes share: devices, tensors in and out, memory errors, the signature. Executor side.

Nothing here pickles.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import Lock
from typing import Any

import torch

from sparkinfer.core.errors import (
    DeviceError,
    ErrorCode,
    ModelError,
    OutOfDeviceMemoryError,
    RowError,
    SparkInferError,
)
from sparkinfer.core.model_spec import Signature, TensorInfo
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.core.protocols import Device, DeviceMemory, Folding, LoadRequest, Outputs, Runtime
from sparkinfer.runtimes._batches import SCORES_RANK, Array, as_embedding, as_scores, given_input, zero_batch

__all__ = ["TorchRuntime", "choose_scores", "is_out_of_memory"]

_OUT_OF_MEMORY = re.compile(r"out of memory|can't allocate memory|_ALLOC_FAILED", re.IGNORECASE)
_AFTER_TRACEBACK = re.compile(r"^(?:builtins\.)?(\w[\w.]*: .*)$", re.MULTILINE)
_CONVOLUTION_RANK = 4
_AUTOCAST = {"fp16": torch.float16, "bf16": torch.bfloat16}


class TorchRuntime(Runtime):
    """A module on a device. The subclasses open it and say which of its outputs are scores and embedding.

    `model.precision` fp16 or bf16 runs it under autocast, which keeps the weights and the sensitive operations in
    fp32.
    """

    @abstractmethod
    def _open(self, request: LoadRequest, device: torch.device) -> torch.nn.Module:
        """The module, in evaluation mode, on its device."""

    @abstractmethod
    def _select(self, output: object) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Scores and embedding (when one was asked for) of one forward pass that gave `output`."""

    def load(self, request: LoadRequest) -> None:
        """Opens the module on its device and tries it with two zero images."""
        _refuse_foreign_keys(request)
        self._request = request
        self._device = _torch_device(request.device)
        self._computing = Lock()
        self._copies = _new_stream(self._device)
        torch.set_num_threads(request.threads)
        try:
            module = self._open(request, self._device)
            self._module = module if request.inside is None else _Normalised(module, request.inside).to(self._device)
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                raise OutOfDeviceMemoryError(_cause(error)) from error
            raise
        self._signature = self._try_out()

    def fold(self, path: str, target: str, preprocess: PreprocessSpec, input_name: str | None) -> Folding | None:  # noqa: ARG002
        """The module is wrapped when it is loaded; the file stays."""
        return Folding(path=path, preprocess=preprocess.folded(), inside=preprocess)

    @property
    def fixed_batches(self) -> bool:
        """True: oneDNN and cuDNN choose kernels by the size of the batch."""
        return True

    def infer(self, batch: Array) -> Outputs:
        """Runs one batch without gradients."""
        try:
            tensor = self._upload(batch)
            # Outside the lock another thread may upload the next batch meanwhile.
            with self._computing, torch.inference_mode(), self._autocast():
                scores, embedding = self._select(self._module(tensor))
                host_scores = scores.float().cpu().numpy()
                host_embedding = None if embedding is None else embedding.float().cpu().numpy()
        except SparkInferError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise OutOfDeviceMemoryError(_cause(error)) from error
            raise RowError(ErrorCode.MODEL_FAILED, _cause(error)) from error
        rows = len(batch)
        return Outputs(
            scores=as_scores(host_scores, rows, self._request.model.output or "scores"),
            embedding=None if host_embedding is None else as_embedding(host_embedding, rows, self._embedding_name),
        )

    def _upload(self, batch: Array) -> torch.Tensor:
        """A copy of the batch on the device; on the CPU too, because a model may work in place on its input.

        On a GPU through pinned memory and a stream of its own, so that it does not wait for what is being computed.
        """
        if self._copies is None:
            return torch.tensor(batch)
        source = torch.from_numpy(batch) if batch.flags.writeable else torch.tensor(batch)
        pinned = torch.empty_like(source, pin_memory=True).copy_(source)
        compute = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._copies):
            tensor = pinned.to(self._device, non_blocking=True)
        compute.wait_stream(self._copies)
        tensor.record_stream(compute)
        return tensor

    def measure_memory(self, rows: int) -> DeviceMemory | None:
        """Peak memory of one batch of zeros over its rows; what other processes hold counts as taken."""
        if self._device.type != "cuda":
            return None
        batch = zero_batch(self._request.preprocess, rows=rows)
        self.infer(batch)  # workspaces that stay are no cost of an image
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        self.infer(batch)
        peak = torch.cuda.max_memory_allocated(self._device) - before
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self._device)
        return DeviceMemory(free_bytes=free, bytes_per_image=peak / rows)

    def signature(self) -> Signature:
        """As the trial at load found it."""
        return self._signature

    def close(self) -> None:
        """Drops the module and gives cached GPU memory back to the driver."""
        del self._module
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _autocast(self) -> AbstractContextManager[object]:
        dtype = _AUTOCAST.get(self._request.model.precision)
        return nullcontext() if dtype is None else torch.autocast(self._device.type, dtype)

    @property
    def _embedding_name(self) -> str:
        return self._request.embedding or ""

    def _try_out(self) -> Signature:
        """Runs two zero images: a torch file does not say what it wants, so this is the only check there is."""
        preprocess = self._request.preprocess
        given = given_input(preprocess)
        trial = zero_batch(preprocess)
        try:
            outputs = self.infer(trial)
        except RowError as error:
            raise ModelError(
                f"the model wants {self._wanted()}, the spec's preprocess gives {given.dtype}{list(trial.shape)} "
                f"(layout {preprocess.layout}, channels {preprocess.channels}); torch says: {error}",
                key="preprocess",
                hint="set preprocess.crop, layout, channels and dtype to what the model was trained with",
            ) from error
        embedding = None
        if outputs.embedding is not None:
            embedding = TensorInfo(name=self._embedding_name, shape=(None, outputs.embedding.shape[1]), dtype="float32")
        num_classes = outputs.scores.shape[1]
        return Signature(
            input=given,
            scores=TensorInfo(name=self._request.model.output or "scores", shape=(None, num_classes), dtype="float32"),
            embedding=embedding,
            num_classes=num_classes,
        )

    def _wanted(self) -> str:
        """The input as far as the first convolution tells it; only ever part of a message."""
        for name, weight in self._module.named_parameters():
            if weight.ndim == _CONVOLUTION_RANK:
                dtype = str(weight.dtype).removeprefix("torch.")
                return f"{dtype}[?, {weight.shape[1]}, ?, ?] (its first convolution, {name.rpartition('.')[0]})"
        return "another input"


def _new_stream(device: torch.device) -> torch.cuda.Stream | None:
    make: Any = torch.cuda.Stream
    return make(device) if device.type == "cuda" else None


class _Normalised(torch.nn.Module):
    """uint8 [batch, height, width, channels] to what `spec` makes, on the module's device, and the module behind it.

    `(x * rescale - mean) / std`, as one multiplication and one addition in float32.
    """

    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(self, module: torch.nn.Module, spec: PreprocessSpec) -> None:
        super().__init__()
        self.module = module
        mean, std = (torch.tensor(values, dtype=torch.float64).reshape(-1, 1, 1) for values in (spec.mean, spec.std))
        self.register_buffer("scale", (spec.rescale / std).float())
        self.register_buffer("shift", (-mean / std).float())
        self._spec = spec

    def forward(self, images: torch.Tensor) -> object:
        """Normalises, then runs the module."""
        pixels = images.permute(0, 3, 1, 2)
        if self._spec.channels == "bgr":
            pixels = pixels.flip(1)
        values = pixels.float() * self.scale + self.shift
        if self._spec.layout == "nhwc":
            values = values.permute(0, 2, 3, 1)
        if self._spec.dtype == "float16":
            values = values.half()
        # Channels last is what the permutation gives for nothing, and what the fastest kernels of GPUs want; oneDNN's
        # convolutions were as fast on it. The module sees an ordinary tensor either way.
        return self.module(values if values.is_cuda else values.contiguous())


def _torch_device(device: Device) -> torch.device:
    """The torch device.

    Raises:
        DeviceError: this build of torch, the driver or the number of GPUs does not allow it.
    """
    if device.kind == "cpu":
        return torch.device("cpu")
    if torch.version.cuda is None:
        missing = "this is a build for the CPU"
    elif not torch.cuda.is_available():
        missing = "it finds no NVIDIA driver or no GPU"
    elif device.index >= torch.cuda.device_count():
        missing = f"there are {torch.cuda.device_count()} visible GPUs"
    else:
        return torch.device("cuda", device.index)
    raise DeviceError(
        f"torch {torch.__version__} cannot use {device}: {missing}",
        key="model.device",
        allowed=["auto", "cpu"],
        hint="install a CUDA build of torch and an NVIDIA driver on the executors, or set model.device: cpu",
    )


def choose_scores(outputs: Mapping[str, object], wanted: str | None) -> torch.Tensor:
    """The scores among named outputs: the wanted one, or the first two-dimensional one.

    Raises:
        ModelError: there is none; lists the outputs.
    """
    if wanted is not None:
        scores = outputs.get(wanted)
        if isinstance(scores, torch.Tensor):
            return scores
        raise ModelError(f"the model has no output {wanted!r}", key="model.output", allowed=outputs)
    tensors = [value for value in outputs.values() if isinstance(value, torch.Tensor)]
    flat = [value for value in tensors if value.ndim == SCORES_RANK and value.is_floating_point()]
    candidates: Sequence[torch.Tensor] = flat or (tensors if len(tensors) == 1 else [])
    if not candidates:
        described = "; ".join(f"{name}: {_describe(value)}" for name, value in outputs.items())
        raise ModelError(
            f"no output looks like class scores [batch, num_classes]: {described}",
            key="model.output",
            allowed=outputs,
        )
    return candidates[0]


def _describe(value: object) -> str:
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    return type(value).__name__


def is_out_of_memory(error: Exception) -> bool:
    """Whether torch says that memory ran out; on the CPU and inside TorchScript only the text tells."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or bool(_OUT_OF_MEMORY.search(str(error)))


def _cause(error: Exception) -> str:
    """Type and text of a torch error in one line: TorchScript puts a traceback above it, others explain below it."""
    text = str(error).strip()
    in_script = _AFTER_TRACEBACK.findall(text) if "Traceback of TorchScript" in text else []
    if in_script:
        return str(in_script[-1])
    name = type(error).__name__
    return f"{name}: {text.splitlines()[0]}" if text else name


def _refuse_foreign_keys(request: LoadRequest) -> None:
    """Keys of the spec that only other formats know.

    Raises:
        ModelError: there is one.
    """
    if request.model.providers:
        raise ModelError(
            "execution providers are ONNX Runtime's; torch has none",
            key="model.providers",
            hint="remove them, and choose the device with model.device",
        )
    if request.model.input is not None:
        raise ModelError(
            f"a torch model takes the images as its only argument, which has no name: {request.model.input!r}",
            key="model.input",
            hint="remove it",
        )
