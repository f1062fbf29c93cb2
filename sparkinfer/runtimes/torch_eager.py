"""Torchvision architectures with a state_dict. Executor side (and the driver's inspection process); nothing pickles.

Files are opened memory-mapped where their format allows it, so that the processes of a node share the weights.
"""

from __future__ import annotations

import difflib
import logging
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import torchvision

from sparkinfer.core.errors import ModelError, SpecError
from sparkinfer.core.protocols import LoadRequest
from sparkinfer.runtimes._torch import TorchRuntime, choose_scores, is_out_of_memory

__all__ = ["TorchEagerRuntime"]

log = logging.getLogger(__name__)

_NESTED_KEYS = ("state_dict", "model_state_dict", "model")
"""Where training scripts put the weights in a checkpoint."""
_PREFIXES = ("module.", "_orig_mod.", "model.")
"""What DataParallel, torch.compile and Lightning put before every name."""
_DEFAULT_CLASSES = 1000
_SHOWN = 3
_AUX_PREFIXES = {"inception_v3": ("AuxLogits.",), "googlenet": ("aux1.", "aux2.")}
"""Heads that these two have for training only, and that many checkpoints lack."""

StateDict = dict[str, torch.Tensor]


class TorchEagerRuntime(TorchRuntime):
    """Runs a torchvision classifier, `model.arch`, with the weights of a `.pt`, `.pth` or `.safetensors` file.

    `model.options` goes to the architecture's builder (`image_size: 384`, `transform_input: true`, ...).
    `postprocess.embedding` names a module of it, whose output is flattened.

    Of a pickle only tensors and plain containers are read, by torch's restricted unpickler, which runs nothing that
    the file names. `model.trusted` allows any pickle, for checkpoints with a training script's own objects.
    """

    def _open(self, request: LoadRequest, device: torch.device) -> torch.nn.Module:
        arch = _checked_arch(request.model.arch)
        weights = _weights(request.path, trusted=request.model.trusted)
        options = {**_aux_options(arch, weights), **request.model.options}
        num_classes = weights[head].shape[0] if (head := _head_name(arch, options)) in weights else _DEFAULT_CLASSES
        module = _build(arch, {"num_classes": num_classes, **options})
        _fill(module, weights, arch)
        self._captured: list[torch.Tensor] = []
        if request.embedding is not None:
            _submodule(module, request.embedding).register_forward_hook(self._capture)
        return module.float().eval().to(device)

    def _capture(self, _module: torch.nn.Module, _inputs: object, output: object) -> None:
        self._captured = [output] if isinstance(output, torch.Tensor) else []

    def _select(self, output: object) -> tuple[torch.Tensor, torch.Tensor | None]:
        scores = choose_scores({"scores": output}, self._request.model.output)
        if self._request.embedding is None:
            return scores, None
        if not self._captured:
            raise ModelError(f"module {self._request.embedding!r} does not give a tensor", key="postprocess.embedding")
        return scores, self._captured.pop()


def _checked_arch(arch: str | None) -> str:
    known = torchvision.models.list_models(module=torchvision.models)
    if arch is None:
        raise SpecError(
            "a state_dict needs the name of its architecture", key="model.arch", hint="model.arch: resnet50"
        )
    if arch not in known:
        raise SpecError(
            f"torchvision has no classifier {arch!r}",
            key="model.arch",
            allowed=difflib.get_close_matches(arch, known, n=5) or known,
        )
    return arch


def _weights(path: str, *, trusted: bool) -> StateDict:
    """The state_dict of a file, nesting and common prefixes taken off."""
    loaded = _read(path, trusted=trusted)
    if isinstance(loaded, torch.nn.Module):  # a trusted pickle of the whole module
        loaded = loaded.state_dict()
    if isinstance(loaded, Mapping):
        nested = [loaded[key] for key in _NESTED_KEYS if isinstance(loaded.get(key), Mapping)]
        loaded = nested[0] if nested else loaded
    if not isinstance(loaded, Mapping) or not any(isinstance(value, torch.Tensor) for value in loaded.values()):
        raise ModelError(
            f"the file holds a {type(loaded).__name__}, not a state_dict",
            key="model.path",
            hint="save it with torch.save(model.state_dict(), path)",
        )
    weights = {str(name): value for name, value in loaded.items() if isinstance(value, torch.Tensor)}
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in weights):
            weights = {name.removeprefix(prefix): value for name, value in weights.items()}
    return weights


def _read(path: str, *, trusted: bool) -> Any:
    try:
        return _read_safetensors(path) if _is_safetensors(path) else _read_checkpoint(path, trusted=trusted)
    except pickle.UnpicklingError as error:
        refused = re.search(r"GLOBAL (\S+)", str(error))
        what = f"holds a {refused[1]}" if refused else "is damaged or was pickled in a way that torch does not read"
        raise ModelError(
            f"the file {what}; only tensors and plain containers are read from a pickle, because others can run code",
            key="model.path",
            hint="save the weights alone: torch.save(model.state_dict(), path), or use .safetensors; "
            "or, only if you know who made the file: model.trusted: true",
        ) from error
    except Exception as error:  # damaged files fail in every way that unpickling can
        if is_out_of_memory(error):
            raise
        text = str(error).strip()
        raise ModelError(
            f"torch cannot read the weights: {text.splitlines()[0] if text else type(error).__name__}",
            key="model.path",
            hint="the file is damaged or is no .pt, .pth or .safetensors file",
        ) from error


def _is_safetensors(path: str) -> bool:
    """By content: a length of eight bytes, then a JSON object."""
    with Path(path).open("rb") as file:
        return file.read(9)[8:] == b"{"


def _read_safetensors(path: str) -> StateDict:
    return safetensors.torch.load_file(path)


def _read_checkpoint(path: str, *, trusted: bool) -> Any:
    read = partial(torch.load, path, map_location="cpu", mmap=zipfile.is_zipfile(path))  # older files are one pickle
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected pickle protocol", UserWarning)
        try:
            return read(weights_only=True)
        except pickle.UnpicklingError:
            if not trusted:
                raise
        log.warning("opening %s as a pickle that can run code, because model.trusted says so", Path(path).name)
        return read(weights_only=False)


def _aux_options(arch: str, weights: StateDict) -> dict[str, Any]:
    if arch not in _AUX_PREFIXES:
        return {}
    has_aux = any(name.startswith(_AUX_PREFIXES[arch]) for name in weights)
    return {"aux_logits": has_aux, "init_weights": False}


def _head_name(arch: str, options: Mapping[str, Any]) -> str:
    """The weight whose rows are the classes: the last one with 1000 of them in the default architecture."""
    names = _build(arch, {**options, "num_classes": _DEFAULT_CLASSES}).state_dict()
    heads = [name for name, value in names.items() if name.endswith("weight") and value.shape[0] == _DEFAULT_CLASSES]
    return heads[-1]


def _build(arch: str, options: Mapping[str, Any]) -> torch.nn.Module:
    """The architecture without memory for its weights, where it can be built like that."""
    builder: Callable[..., torch.nn.Module] = torchvision.models.get_model_builder(arch)
    try:
        try:
            with torch.device("meta"):
                return builder(weights=None, **options)
        except NotImplementedError:  # RegNets compute their widths with tensors while they are built
            return builder(weights=None, **options)
    except Exception as error:  # builders check with assertions too, and leave the rest to whatever fails in them
        if is_out_of_memory(error):
            raise
        text = str(error).strip()
        raise ModelError(
            f"{arch} does not take these options: {text.splitlines()[0] if text else type(error).__name__}",
            key="model.options",
            hint=f"they are the arguments of torchvision.models.{arch}",
        ) from error


def _fill(module: torch.nn.Module, weights: StateDict, arch: str) -> None:
    """Puts the weights into the module, sharing their memory.

    Raises:
        ModelError: names or shapes differ; lists a few.
    """
    expected = module.state_dict()
    # Batch counters matter to training only; checkpoints from before torch 0.4.1 lack them.
    counters = {name: torch.tensor(0) for name in expected if name.endswith("num_batches_tracked")}
    weights = {**counters, **weights}
    problems = [
        _few("missing", expected.keys() - weights.keys()),
        _few("unexpected", weights.keys() - expected.keys()),
        _few(
            "of another shape",
            (
                f"{name} {list(weights[name].shape)} instead of {list(expected[name].shape)}"
                for name in expected.keys() & weights.keys()
                if weights[name].shape != expected[name].shape
            ),
        ),
    ]
    if any(problems):
        raise ModelError(
            f"the weights do not fit {arch}: {'; '.join(filter(None, problems))}",
            key="model.arch",
            hint="name the architecture that was trained, and its builder's arguments in model.options",
        )
    module.load_state_dict(weights, assign=True)


def _few(what: str, names: Iterable[str]) -> str:
    listed = sorted(names)
    if not listed:
        return ""
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return f"{what}: {', '.join(listed[:_SHOWN])}{more}"


def _submodule(module: torch.nn.Module, name: str) -> torch.nn.Module:
    modules: dict[str, torch.nn.Module] = {path: part for path, part in module.named_modules() if path}
    if name not in modules:
        top_level = [path for path in modules if "." not in path]
        raise ModelError(
            f"the model has no module {name!r}",
            key="postprocess.embedding",
            allowed=difflib.get_close_matches(name, modules, n=_SHOWN) or top_level,
            hint="print(dict(model.named_modules()).keys()) lists them all",
        )
    return modules[name]
