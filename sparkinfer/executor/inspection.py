"""Opens a model and says what it is: `python -m sparkinfer.executor.inspection`, JSON on stdin, JSON on stdout.

The driver runs this in a process of its own (`driver.inspect`), so that no framework, and no native crash, enters the
driver. It always runs on the CPU.

Request: `path`, `model`, `preprocess` (only the keys that are set), `embedding`. Answer: `signature` and `preprocess`,
or `error` with the fields of a `UserError`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from sparkinfer.core import errors
from sparkinfer.core.errors import UserError
from sparkinfer.core.model_spec import ModelSpec, Signature
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.core.protocols import LoadRequest
from sparkinfer.core.registry import create_runtime, load_attribute

__all__ = ["error_from_dict", "error_to_dict", "inspect_model", "main", "resolve_preset"]

_PRESETS = "sparkinfer.runtimes.torchvision_presets:recipe"
"""By name, as runtimes are: it imports torchvision."""


def inspect_model(request: dict[str, Any]) -> tuple[Signature, PreprocessSpec]:
    """Loads the model on the CPU and runs it on zero images.

    Args:
        request: `path` of a local file; `model`, with its format resolved, and `preprocess` as plain data;
            `embedding` or None.

    Returns:
        The signature, and the preprocess block with a weights enum resolved.

    Raises:
        UserError: the model cannot be opened or does not fit the spec.
    """
    model = ModelSpec.model_validate(request["model"])
    preprocess = PreprocessSpec.model_validate(request["preprocess"])
    if preprocess.is_weights_enum:
        preprocess = preprocess.resolved(resolve_preset(preprocess.preset))
    runtime = create_runtime(model.format)
    runtime.load(
        LoadRequest(path=request["path"], model=model, preprocess=preprocess, embedding=request.get("embedding"))
    )
    return runtime.signature(), preprocess


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


def main() -> None:
    """Answers one request on the last line of stdout. What frameworks print meanwhile goes to stderr."""
    answers = os.dup(1)
    os.dup2(2, 1)
    answer: dict[str, Any]
    try:
        signature, preprocess = inspect_model(json.load(sys.stdin))
        answer = {
            "signature": signature.model_dump(mode="json"),
            "preprocess": preprocess.model_dump(mode="json", exclude_unset=True),
        }
    except UserError as error:
        answer = {"error": error_to_dict(error)}
    with os.fdopen(answers, "w") as file:
        file.write(f"\n{json.dumps(answer)}\n")


if __name__ == "__main__":
    main()
