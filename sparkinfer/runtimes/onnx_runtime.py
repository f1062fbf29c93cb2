"""ONNX models through ONNX Runtime. Executor side (and the driver's inspection process); nothing pickles.

The session opens the file by path, so that all processes of a node share its pages.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import logging
import re
from pathlib import Path
from typing import Any

import onnxruntime as ort

from sparkinfer.core.errors import ModelError, OutOfDeviceMemoryError
from sparkinfer.core.model_spec import Signature, TensorInfo
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.core.protocols import Folding, LoadRequest, Outputs, Runtime
from sparkinfer.runtimes._batches import (
    SCORES_RANK,
    Array,
    as_embedding,
    as_scores,
    check_input,
    run_in_chunks,
    zero_batch,
)
from sparkinfer.runtimes._onnx_labels import find_labels
from sparkinfer.runtimes._onnx_options import SESSION_KEY, check_options, entry_value
from sparkinfer.runtimes._onnx_providers import PROVIDERS, lacking, may_be_missing, no_provider, usable
from sparkinfer.runtimes._onnx_share import SHARE_ABOVE_BYTES, make_shareable, open_shared, shared_name

__all__ = ["OnnxRuntime"]

log = logging.getLogger(__name__)

_QUIET = 4
"""Log level "fatal": what goes wrong in a session is raised as well."""

_OUT_OF_MEMORY = re.compile(r"out of memory|failed to allocate memory|bad_alloc|_ALLOC_FAILED", re.IGNORECASE)
_NO_DEVICE = re.compile(r"invalid device ordinal|no CUDA-capable device|CUDA driver version is insufficient")
_DTYPE_NAMES = {"float": "float32", "double": "float64"}

ort.set_default_logger_severity(3)  # errors only: its warnings are about missing GPUs, which we report ourselves


class OnnxRuntime(Runtime):
    """Runs an `.onnx` file.

    `model.options` holds options of ONNX Runtime's CUDA provider (`gpu_mem_limit` in bytes,
    `cudnn_conv_algo_search`, ...), which matter on a GPU only, and under `session` a map of session configuration
    entries. `postprocess.embedding` names an output.
    """

    def load(self, request: LoadRequest) -> None:
        """Opens the session and checks inputs and outputs by the file's own declarations, without running it."""
        if request.model.precision != "fp32":
            raise ModelError(
                f"an ONNX file fixes its own precision; {request.model.precision} is for torch models",
                key="model.precision",
                allowed=["fp32"],
                hint="convert the file, for example with onnxconverter-common",
            )
        check_options(request.model.options)
        self._preprocess = request.preprocess
        self._on_cpu = _provider_names(request)[0] == PROVIDERS["cpu"]
        self._session = _open_session(request)
        self._input = _choose_input(self._session, request.model.input)
        check_input(self._input, request.preprocess)
        outputs = _outputs(self._session)
        self._scores = _choose_scores(outputs, request.model.output)
        self._embedding = _choose_embedding(outputs, request.embedding)
        chosen = [self._scores] if self._embedding is None else [self._scores, self._embedding]
        self._output_names = [info.name for info in chosen]
        self._fixed_rows = self._input.shape[0]

    def adapt(self, path: str, preprocess: PreprocessSpec) -> PreprocessSpec:
        """For a file that `sparkinfer model optimize` folded: what is left of the block that was folded into it.

        So a job file works unchanged with the optimised model, and a folded model without a word about preprocessing.

        Raises:
            SpecError: the job states another recipe.
        """
        from sparkinfer.runtimes import _onnx_graph

        return _onnx_graph.adapted(Path(path), preprocess)

    def pack(self, path: str, target: str) -> str:
        """Brings weights home that lie in external data files, as PyTorch's exporter leaves them."""
        from sparkinfer.runtimes import _onnx_file  # needs the package onnx, which the executors do not

        return str(_onnx_file.embed_external_files(Path(path), Path(target)))

    def fold(self, path: str, target: str, preprocess: PreprocessSpec, input_name: str | None) -> Folding | None:
        """Writes a graph that normalises at its start."""
        from sparkinfer.runtimes import _onnx_graph

        folding = _onnx_graph.fold_file(Path(path), Path(target), preprocess, input_name)
        return Folding(path=str(folding.path), preprocess=folding.preprocess) if folding.folded else None

    @property
    def fixed_batches(self) -> bool:
        """True on accelerators, which choose kernels by shape; on the CPU a row's bits do not depend on its batch."""
        return not self._on_cpu

    def infer(self, batch: Array) -> Outputs:
        """Runs one batch; a model with a fixed batch dimension gets chunks of exactly that size."""
        rows = len(batch)
        arrays = self._run(batch) if self._fixed_rows is None else run_in_chunks(batch, self._fixed_rows, self._run)
        return Outputs(
            scores=as_scores(arrays[0], rows, self._output_names[0]),
            embedding=None if self._embedding is None else as_embedding(arrays[1], rows, self._output_names[1]),
        )

    def _run(self, batch: Array) -> list[Array]:
        try:
            arrays: list[Array] = self._session.run(self._output_names, {self._input.name: batch})
        except Exception as error:
            raise _mapped(error) from error
        return arrays

    def signature(self) -> Signature:
        """Names and dtypes from the file, widths from running zero images, labels from its metadata."""
        trial = zero_batch(self._preprocess, self._input, rows=self._fixed_rows or 2)
        try:
            outputs = self.infer(trial)
        except (ModelError, OutOfDeviceMemoryError):
            raise
        except Exception as error:
            raise ModelError(
                f"the model fails on zero images {trial.dtype}{list(trial.shape)}: {error}", key="model.path"
            ) from error
        scores = self._scores.model_copy(update={"shape": (self._fixed_rows, outputs.scores.shape[1])})
        embedding = self._embedding and self._embedding.model_copy(
            update={"shape": (self._fixed_rows, outputs.embedding.shape[1])}
        )
        return Signature(
            input=self._input,
            scores=scores,
            embedding=embedding,
            num_classes=outputs.scores.shape[1],
            labels=find_labels(self._session.get_modelmeta().custom_metadata_map),
        )

    def close(self) -> None:
        """Drops the session."""
        self._session = None


def _session_options(request: LoadRequest) -> Any:
    options = ort.SessionOptions()
    options.log_severity_level = _QUIET
    options.intra_op_num_threads = request.threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    for entry, value in request.model.options.get(SESSION_KEY, {}).items():
        options.add_session_config_entry(entry, entry_value(value))
    return options


def _open_session(request: LoadRequest) -> Any:
    complaint = _preload_cuda() if request.device.kind == "cuda" else ""
    providers = _providers(request)
    shared = _open_shared(request) if request.share and providers == ["CPUExecutionProvider"] else None
    if shared is not None:
        return shared
    try:
        session = ort.InferenceSession(request.path, _session_options(request), providers=providers, enable_fallback=0)
    except Exception as error:
        raise _open_error(error, request) from error
    for name in _provider_names(request):
        if name in session.get_providers():
            continue  # else ONNX Runtime would go on without a word
        if not may_be_missing(name, request.model.providers):
            raise no_provider(name, request.device, complaint or _driver_complaint())
    left_out = [name for name in request.model.providers if PROVIDERS[name] not in session.get_providers()]
    if left_out:
        log.warning("model.providers: %s cannot be used here; using %s", ", ".join(left_out), session.get_providers())
    return session


def _open_shared(request: LoadRequest) -> Any:
    """The session on the node's shared copy of a large model; None where sharing is not worth it, or does not work."""
    path = Path(request.path)
    if path.stat().st_size < SHARE_ABOVE_BYTES:
        return None
    shared = path.with_name(shared_name(path.stem))
    try:
        make_shareable(path, shared, zero_batch(request.preprocess))
        return open_shared(shared, _session_options(request))
    except Exception as error:  # noqa: BLE001 - the model itself is opened next, and says what is wrong with it
        log.warning("this process opens its own copy of the model: %s", error)
        return None


def _provider_names(request: LoadRequest) -> list[str]:
    """As the spec orders them, or the device's own.

    A list that has `cpu` too allows to do without the others: those of NVIDIA on a machine without a GPU, where a list
    that has not never gets here (`ModelSpec.wanted_device`); the rest where this build lacks them.
    """
    return usable(request.model.providers, request.device)


def _providers(request: LoadRequest) -> list[Any]:
    """Names with options; the CPU comes last in any case, for nodes that the others do not know.

    Raises:
        DeviceError: this build lacks one.
    """
    names = _provider_names(request)
    for name in names:
        if name not in ort.get_available_providers():
            raise lacking(name, request.device, request.model.providers)
    own = {key: value for key, value in request.model.options.items() if key != SESSION_KEY}
    place = {"device_id": request.device.index}
    options = {
        # The arena's default strategy doubles it each time, and ends far above what the model needs.
        "CUDAExecutionProvider": {**place, "arena_extend_strategy": "kSameAsRequested", **own},
        "ROCMExecutionProvider": {**place, "arena_extend_strategy": "kSameAsRequested", **own},
        "TensorrtExecutionProvider": place,
    }
    cpu = PROVIDERS["cpu"]
    return [(name, options[name]) if name in options else name for name in [*names, *([] if cpu in names else [cpu])]]


def _preload_cuda() -> str:
    """Loads the CUDA libraries that pip brought; what ONNX Runtime prints when it fails says what is missing."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        ort.preload_dlls()
    return " ".join(printed.getvalue().split())


def _driver_complaint() -> str:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"there is no NVIDIA driver ({error})"
    return "there is no such GPU, or this build does not support it"


def _open_error(error: Exception, request: LoadRequest) -> Exception:
    text = str(error)
    if _OUT_OF_MEMORY.search(text):
        return OutOfDeviceMemoryError(f"the model does not fit in the memory of {request.device}: {text}")
    if _NO_DEVICE.search(text):
        return no_provider(_provider_names(request)[0], request.device, text)
    if "provider option" in text.lower():
        return ModelError(f"ONNX Runtime refuses an option: {text}", key="model.options")
    hint = "export the model again, or check model.format"
    if "external" in text.lower():
        hint = "the weights are in a file beside the model; save it as one file (external_data=False)"
    return ModelError(f"ONNX Runtime cannot open the model: {text}", key="model.path", hint=hint)


def _mapped(error: Exception) -> Exception:
    return OutOfDeviceMemoryError(str(error)) if _OUT_OF_MEMORY.search(str(error)) else error


def _info(node: Any) -> TensorInfo:
    """A node's name, shape and numpy dtype; symbolic dimensions become None."""
    match = re.fullmatch(r"tensor\((\w+)\)", node.type)
    dtype = _DTYPE_NAMES.get(match[1], match[1]) if match else node.type
    shape = tuple(side if isinstance(side, int) else None for side in node.shape) if match else ()
    return TensorInfo(name=node.name, shape=shape, dtype=dtype)


def _choose_input(session: Any, wanted: str | None) -> TensorInfo:
    inputs = {node.name: _info(node) for node in session.get_inputs()}
    if wanted is None and len(inputs) == 1:
        return next(iter(inputs.values()))
    if wanted is None:
        raise ModelError(
            f"the model has {len(inputs)} inputs", key="model.input", allowed=inputs, hint="name the image input"
        )
    if wanted not in inputs:
        raise ModelError(f"the model has no input {wanted!r}", key="model.input", allowed=inputs)
    others = [str(info) for name, info in inputs.items() if name != wanted]
    if others:
        raise ModelError(
            f"besides the image input {wanted!r} the model needs {'; '.join(others)}",
            key="model.path",
            hint="export the model with the other inputs as constants",
        )
    return inputs[wanted]


def _outputs(session: Any) -> dict[str, TensorInfo]:
    return {node.name: _info(node) for node in session.get_outputs()}


def _choose_scores(outputs: dict[str, TensorInfo], wanted: str | None) -> TensorInfo:
    if wanted is not None:
        if wanted not in outputs:
            raise ModelError(f"the model has no output {wanted!r}", key="model.output", allowed=outputs)
        return outputs[wanted]
    floats = [info for info in outputs.values() if info.dtype.startswith("float")]
    flat = [info for info in floats if len(info.shape) == SCORES_RANK]
    candidates = flat or (floats if len(floats) == 1 else [])
    if not candidates:
        raise ModelError(
            f"no output looks like class scores [batch, num_classes]: {'; '.join(map(str, outputs.values()))}",
            key="model.output",
            allowed=outputs,
        )
    return candidates[0]


def _choose_embedding(outputs: dict[str, TensorInfo], wanted: str | None) -> TensorInfo | None:
    if wanted is None:
        return None
    if wanted not in outputs:
        raise ModelError(f"the model has no output {wanted!r}", key="postprocess.embedding", allowed=outputs)
    return outputs[wanted]
