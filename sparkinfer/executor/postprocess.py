"""Scores to confidences and best classes. Executor side; numpy only."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sparkinfer.core.model_spec import PostprocessSpec

__all__ = ["TopK", "confidences", "effective_classes", "top_k"]

Floats = NDArray[np.float32]


class TopK(NamedTuple):
    """Best classes of each row, best first: `class_idx` int32 [rows, k], `confidence` float32 [rows, k]."""

    class_idx: NDArray[np.int32]
    confidence: Floats


def effective_classes(num_scores: int, activation: str) -> int:
    """Classes that a score vector stands for: one sigmoid score is a yes-or-no question, so it stands for two."""
    return 2 if num_scores == 1 and activation == "sigmoid" else num_scores


def confidences(scores: Floats, activation: str) -> Floats:
    """Confidences of finite scores.

    softmax: exp(s - max) / sum(exp(s - max)), so that large scores do not overflow. sigmoid: 1 / (1 + exp(-s)), each
    class for itself; one single score s becomes [1 - p, p]. none: the scores are probabilities already.

    Args:
        scores: float32 [rows, classes].

    Returns:
        float32 [rows, effective classes].
    """
    if activation == "none":
        return scores
    if activation == "sigmoid":
        # exp of minus the magnitude never overflows; the other half follows from 1 - p.
        decay = np.exp(-np.abs(scores, dtype=np.float64))
        p = np.where(scores >= 0, 1.0, decay) / (1.0 + decay)
        if scores.shape[1] == 1:
            p = np.concatenate([1.0 - p, p], axis=1)
        return p.astype(np.float32)
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    result: Floats = shifted / shifted.sum(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
    return result


def top_k(scores: Floats, spec: PostprocessSpec) -> TopK:
    """The `spec.top_k` best classes of each row of finite scores; ties go to the lower class index.

    Ranks by the raw scores, not by confidences: a saturated softmax would make ties of different scores.
    """
    conf = confidences(scores, spec.activation)
    rank_by = scores if conf.shape == scores.shape else conf
    k = min(spec.top_k, conf.shape[1])
    order = np.argsort(-rank_by, axis=1, kind="stable")[:, :k]
    return TopK(order.astype(np.int32), np.take_along_axis(conf, order, axis=1))
