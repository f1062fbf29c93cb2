"""Whether a model's answers make sense, by the first ones of a task. Executor side; numpy only.

A model that was exported wrongly, or is given the wrong preprocessing or activation, predicts millions of rows without
one error. Its first results tell: scores that are no probabilities, the same answer whatever the image, nothing finite.
"""

from __future__ import annotations

import hashlib
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from sparkinfer.core.errors import ModelError
from sparkinfer.executor.postprocess import confidences

__all__ = ["FIRST", "TOLERANCE", "Sanity"]

FIRST = 10
"""Different images of a task whose results are looked at."""

FEWEST = 5
"""Different images of a whole task from which on one answer for all is no accident."""

TOLERANCE = 1e-3
"""By which a probability may leave [0, 1], and a sum of them 1: float16's rounding of a sum of 1,000."""


class Sanity:
    """Looks at the first results of one task. Any thread.

    Args:
        activation: `PostprocessSpec.activation`.
    """

    def __init__(self, activation: str) -> None:
        self._activation = activation
        self._lock = Lock()
        self._images: set[bytes] = set()
        self._scores: list[NDArray[np.float32]] = []

    def look(self, inputs: NDArray[np.generic], scores: NDArray[np.float32]) -> None:
        """Takes note of a batch, until there is nothing left to learn.

        Args:
            inputs: [n, ...], what the model was given.
            scores: float32 [n, classes], what it answered.

        Raises:
            ModelError: the answers make no sense.
        """
        with self._lock:
            for image, answer in zip(inputs, scores, strict=True):
                if len(self._images) >= FIRST:
                    return
                digest = hashlib.sha256(image.tobytes()).digest()
                if digest not in self._images:
                    self._images.add(digest)
                    self._scores.append(answer)
                    self._check_one(answer)
                    if len(self._images) == FIRST:
                        self._check_all()

    def finish(self) -> None:
        """Judges a task that has ended with fewer images.

        Raises:
            ModelError: the answers make no sense.
        """
        if FEWEST <= len(self._images) < FIRST:
            self._check_all()

    def _check_one(self, scores: NDArray[np.float32]) -> None:
        if not np.isfinite(scores).all():
            return  # a row of its own says so; that none is finite, only all of them can tell
        probabilities = confidences(scores[None], self._activation)[0]
        worst = float(probabilities[np.abs(probabilities - 0.5).argmax()])
        if not -TOLERANCE <= worst <= 1 + TOLERANCE:
            raise ModelError(
                f"the model's scores are no probabilities: one is {worst:g}",
                key="postprocess.activation",
                allowed=["softmax", "sigmoid", "none, where the model ends in one of them"],
                hint=_SWITCH,
            )
        total = float(probabilities.sum(dtype=np.float64))
        if self._activation == "softmax" and abs(total - 1) > TOLERANCE:
            raise ModelError(f"an image's probabilities add up to {total:g}, not 1", key="model.path", hint=_SWITCH)

    def _check_all(self) -> None:
        scores = np.stack(self._scores)
        images = f"{len(scores)} different images"
        if not np.isfinite(scores).all(axis=1).any():
            raise ModelError(
                f"the model answered NaN or infinity for each of the first {images}",
                key="model.path",
                hint=f"precision: fp32 helps where half precision overflows; {_SWITCH}",
            )
        if np.array_equal(scores, np.broadcast_to(scores[0], scores.shape), equal_nan=True):
            raise ModelError(
                f"the model gave the same answer for {images}",
                key="model.path",
                hint=f"was it exported with its weights, and does preprocess: fit it? {_SWITCH}",
            )


_SWITCH = "postprocess.check: false turns this check off"
