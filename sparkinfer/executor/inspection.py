"""Opens a model and says what it is: `python -m sparkinfer.executor.inspection`, JSON on stdin, JSON on stdout.

The driver runs this in a process of its own (`driver.inspect`), so that no framework, and no native crash, enters the
driver. It always runs on the CPU.

Request: `path`, `model`, `preprocess` (only the keys that are set), `embedding`, `scratch` (a folder to
write to, or null). Answer: `signature`, `preprocess` and `folding`, or `error` with the fields of a `UserError`.

Another request: `providers`, `kind` and `index` of a device. Answer: nothing where this machine's ONNX Runtime has
what the list asks for, else `error`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sparkinfer.core import errors
from sparkinfer.core.errors import UserError
from sparkinfer.core.model_spec import ModelSpec, Signature
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.core.protocols import Device, Folding, LoadRequest, Runtime
from sparkinfer.core.registry import create_runtime, load_attribute

__all__ = ["error_from_dict", "error_to_dict", "inspect_model", "main", "resolve_preset"]

log = logging.getLogger(__name__)  # warnings of an unconfigured logger go to stderr, which the driver logs

_PRESETS = "sparkinfer.runtimes.torchvision_presets:recipe"
"""By name, as runtimes are: it imports torchvision."""
_CHECK_PROVIDERS = "sparkinfer.runtimes._onnx_providers:check_providers"
"""Likewise: it imports ONNX Runtime."""


def inspect_model(request: dict[str, Any]) -> tuple[Signature, PreprocessSpec, Folding]:
    """Loads the model on the CPU and runs it on zero images.

    Args:
        request: `path` of a local file; `model`, with its format resolved, and `preprocess` as plain data;
            `embedding` and `scratch`, or None.

    Returns:
        The signature, the preprocess block with a weights enum resolved, and what travels to the executors:
        one file, with normalisation folded into it where `scratch`, the spec and the format allow.

    Raises:
        UserError: the model cannot be opened or does not fit the spec.
    """
    # Providers need the executors' hardware and builds; what a model says of itself does not.
    model = ModelSpec.model_validate(request["model"])
    if model.format == "onnx":
        model = model.model_copy(update={"providers": ()})
    preprocess = PreprocessSpec.model_validate(request["preprocess"])
    if preprocess.is_weights_enum:
        preprocess = preprocess.resolved(resolve_preset(preprocess.preset))
    runtime = create_runtime(model.format)
    preprocess = runtime.adapt(request["path"], preprocess)
    runtime.load(
        LoadRequest(path=request["path"], model=model, preprocess=preprocess, embedding=request.get("embedding"))
    )
    travels = Folding(path=request["path"], preprocess=preprocess)
    if request.get("scratch"):
        scratch = Path(request["scratch"])
        packed = runtime.pack(request["path"], str(scratch / f"packed{Path(request['path']).suffix}"))
        travels = Folding(path=packed, preprocess=preprocess)
        if model.fold and preprocess.dtype != "uint8":
            request = {**request, "path": packed, "fold_to": str(scratch / f"folded{Path(packed).suffix}")}
            travels = _fold(runtime, request, model, preprocess) or travels
    return runtime.signature(), preprocess, travels


FOLDED_TOLERANCE = 1e-4
"""Of scores relative to their spread: folding reorders float32 arithmetic, nothing more."""


def _fold(runtime: Runtime, request: dict[str, Any], model: ModelSpec, preprocess: PreprocessSpec) -> Folding | None:
    """The folded model, if the format can and the scores of two noisy images stay what they were."""
    try:
        folding = runtime.fold(request["path"], request["fold_to"], preprocess, model.input)
    except UserError as error:
        log.warning("normalisation stays outside the model: %s", error.message)
        return None
    if folding is None:
        return None
    folded = create_runtime(model.format)
    folded.load(
        LoadRequest(
            path=folding.path,
            model=model,
            preprocess=folding.preprocess,
            embedding=request.get("embedding"),
            inside=folding.inside,
        )
    )
    height, width = preprocess.output_size or (224, 224)
    noise = np.random.default_rng(0).integers(0, 256, (2, height, width, preprocess.num_channels), np.uint8)
    before, after = runtime.infer(_preprocessed(noise, preprocess)).scores, folded.infer(noise).scores
    worst = float(np.abs(before - after).max() / max(1.0, float(np.abs(before).max())))
    if worst <= FOLDED_TOLERANCE:
        return folding
    log.warning("normalisation stays outside the model: inside, scores differ by %.1e", worst)
    return None


def _preprocessed(pixels: NDArray[np.uint8], spec: PreprocessSpec) -> NDArray[np.generic]:
    """A batch of pictures of the right size as the chain prepares them."""
    if spec.channels == "bgr":
        pixels = pixels[..., ::-1]
    values = (pixels * np.float32(spec.rescale) - np.array(spec.mean, np.float32)) / np.array(spec.std, np.float32)
    if spec.layout == "nchw":
        values = values.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(values.astype(spec.dtype))


def resolve_preset(name: str) -> dict[str, Any]:
    """The preprocess keys of a torchvision weights enum, such as `ResNet50_Weights.IMAGENET1K_V2`.

    Raises:
        SpecError: torchvision has no such weights, or they are not a classifier's.
        MissingExtraError: torchvision is not installed.
    """
    recipe: dict[str, Any] = load_attribute(_PRESETS)(name)
    return recipe


def error_to_dict(error: UserError) -> dict[str, Any]:
    """An error as plain data."""
    return {
        "type": type(error).__name__,
        "message": error.message,
        "key": error.key,
        "allowed": list(error.allowed),
        "hint": error.hint,
    }


def error_from_dict(data: dict[str, Any]) -> UserError:
    """The inverse of `error_to_dict`."""
    error: UserError = getattr(errors, data["type"])(data["message"])
    error.key, error.allowed, error.hint = data["key"], tuple(data["allowed"]), data["hint"]
    return error


def _plain(spec: PreprocessSpec) -> dict[str, Any]:
    return spec.model_dump(mode="json")


def main() -> None:
    """Answers one request on the last line of stdout. What frameworks print meanwhile goes to stderr."""
    answers = os.dup(1)
    os.dup2(2, 1)
    answer: dict[str, Any]
    request = json.load(sys.stdin)
    try:
        answer = _checked_providers(request) if "providers" in request else _inspected(request)
    except UserError as error:
        answer = {"error": error_to_dict(error)}
    with os.fdopen(answers, "w") as file:
        file.write(f"\n{json.dumps(answer)}\n")


def _inspected(request: dict[str, Any]) -> dict[str, Any]:
    signature, preprocess, folding = inspect_model(request)
    return {
        "signature": signature.model_dump(mode="json"),
        "preprocess": _plain(preprocess),
        "folding": {
            "path": folding.path,
            "preprocess": _plain(folding.preprocess),
            "inside": folding.inside and _plain(folding.inside),
        },
    }


def _checked_providers(request: dict[str, Any]) -> dict[str, Any]:
    load_attribute(_CHECK_PROVIDERS)(request["providers"], Device(request["kind"], request["index"]))
    return {}


if __name__ == "__main__":
    main()
