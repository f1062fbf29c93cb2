"""Plain decoding and inference, shared by all peers that take Python code. Knows nothing of sparkinfer.

What a careful engineer writes by hand: Pillow for the picture, one multiply and one add for the normalisation, a
preallocated batch, and an ONNX session with one thread.
"""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from PIL import Image

from tests.benchmarks.contestants.job import Recipe

__all__ = ["Classifier"]

ort.set_default_logger_severity(3)  # the GPU build complains about missing GPUs


class Classifier:
    """A loaded model with its recipe; one per process.

    Args:
        onnx: model file; float32 input [batch, 3, crop, crop], scores [batch, classes].
        recipe: how pictures become inputs.
        batch_size: pictures per model call at most.
    """

    def __init__(self, onnx: str, recipe: Recipe, batch_size: int) -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
        self._session = ort.InferenceSession(onnx, options, providers=["CPUExecutionProvider"])
        self._input: str = self._session.get_inputs()[0].name
        self._recipe = recipe
        self._filter = Image.Resampling[recipe.interpolation.upper()]
        std = np.asarray(recipe.std, np.float32)
        self._scale = np.float32(1) / (np.float32(255) * std)
        self._shift = -np.asarray(recipe.mean, np.float32) / std
        self._batch = np.empty((batch_size, 3, recipe.crop, recipe.crop), np.float32)

    def __call__(self, contents: Sequence[bytes]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Best class and its softmax for each compressed picture."""
        size = len(self._batch)
        parts = [self._predict(contents[start : start + size]) for start in range(0, len(contents), size)]
        best, confidence = zip(*parts, strict=True)
        return np.concatenate(best), np.concatenate(confidence)

    def _predict(self, contents: Sequence[bytes]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        for slot, content in enumerate(contents):
            self._load(content, self._batch[slot])
        (scores,) = self._session.run(None, {self._input: self._batch[: len(contents)]})
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        best = scores.argmax(axis=1)
        rows = np.arange(len(best))
        return best.astype(np.int32), (weights[rows, best] / weights.sum(axis=1)).astype(np.float32)

    def _load(self, content: bytes, slot: NDArray[np.float32]) -> None:
        """Decodes, resizes the shorter side, crops the centre (torchvision's rounding), normalises into `slot`."""
        picture = Image.open(io.BytesIO(content)).convert("RGB")
        width, height = picture.size
        side, crop = self._recipe.resize, self._recipe.crop
        size = (side, int(side * height / width)) if width <= height else (int(side * width / height), side)
        picture = picture.resize(size, self._filter)
        left, top = round((size[0] - crop) / 2), round((size[1] - crop) / 2)
        pixels = np.asarray(picture.crop((left, top, left + crop, top + crop)))
        np.multiply(pixels.transpose(2, 0, 1), self._scale[:, None, None], out=slot)
        slot += self._shift[:, None, None]
