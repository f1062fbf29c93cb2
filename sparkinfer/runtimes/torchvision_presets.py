"""Preprocessing recipes of torchvision's weights enums. The driver's inspection process only; nothing pickles."""

from __future__ import annotations

import difflib
from typing import Any

import torchvision.models
from torchvision.transforms._presets import ImageClassification

from sparkinfer.core.errors import SpecError

__all__ = ["recipe"]


def recipe(name: str) -> dict[str, Any]:
    """The preprocess keys that reproduce the transforms of a weights enum.

    Args:
        name: such as `ResNet50_Weights.IMAGENET1K_V2`.

    Raises:
        SpecError: there are no such weights, or they are not a classifier's.
    """
    known = _classifier_weights()
    if name not in known:
        raise SpecError(
            f"torchvision has no classifier weights {name!r}",
            key="preprocess.preset",
            allowed=difflib.get_close_matches(name, known, n=5),
            hint="torchvision's documentation lists them under Classification; ResNet50_Weights.IMAGENET1K_V2 is one",
        )
    transforms = torchvision.models.get_weight(name).transforms()
    return {
        "resize": _side(transforms.resize_size),
        "crop": _side(transforms.crop_size),
        "interpolation": transforms.interpolation.value,
        "mean": tuple(transforms.mean),
        "std": tuple(transforms.std),
    }


def _classifier_weights() -> list[str]:
    enums = [
        torchvision.models.get_model_weights(model)
        for model in torchvision.models.list_models(module=torchvision.models)
    ]
    return [
        str(weights)
        for enum in enums
        for weights in enum
        if getattr(weights.transforms, "func", None) is ImageClassification
    ]


def _side(size: list[int]) -> int | list[int]:
    """Torchvision keeps sizes as lists: one number is the shorter side, or both sides of a square crop."""
    return size[0] if len(size) == 1 else size
