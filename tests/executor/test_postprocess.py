"""Scores to confidences: expected values from the formulas, by hand or with float64 arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sparkinfer.core.model_spec import PostprocessSpec
from sparkinfer.executor.postprocess import confidences, effective_classes, top_k


def test_softmax_of_known_scores() -> None:
    scores = np.array([[0.0, math.log(2.0), math.log(5.0)]], np.float32)
    assert confidences(scores, "softmax")[0] == pytest.approx([1 / 8, 2 / 8, 5 / 8], abs=1e-6)


def test_softmax_of_huge_scores_does_not_overflow() -> None:
    scores = np.array([[1e30, 0.0], [-1e30, -1e30]], np.float32)
    assert confidences(scores, "softmax").tolist() == [[1.0, 0.0], [0.5, 0.5]]


def test_sigmoid_of_known_scores() -> None:
    scores = np.array([[math.log(3.0), -math.log(3.0), -200.0, 200.0]], np.float32)
    assert confidences(scores, "sigmoid")[0] == pytest.approx([0.75, 0.25, 0.0, 1.0], abs=1e-6)


def test_one_sigmoid_score_is_yes_or_no() -> None:
    assert effective_classes(1, "sigmoid") == 2
    top = top_k(np.array([[math.log(3.0)], [-math.log(3.0)]], np.float32), PostprocessSpec(activation="sigmoid"))
    assert top.class_idx[:, 0].tolist() == [1, 0]
    assert top.confidence[:, 0] == pytest.approx([0.75, 0.75], abs=1e-6)


def test_probabilities_pass_unchanged() -> None:
    scores = np.array([[0.2, 0.7, 0.1]], np.float32)
    top = top_k(scores, PostprocessSpec(activation="none", top_k=2))
    assert top.class_idx.tolist() == [[1, 0]]
    assert top.confidence.tolist() == [[np.float32(0.7), np.float32(0.2)]]


def test_ties_go_to_the_lower_class_and_k_stops_at_the_classes() -> None:
    top = top_k(np.zeros((1, 3), np.float32), PostprocessSpec(top_k=10))
    assert top.class_idx.tolist() == [[0, 1, 2]]


def test_saturated_softmax_still_ranks_by_score() -> None:
    top = top_k(np.array([[100.0, 300.0, 200.0]], np.float32), PostprocessSpec(top_k=3))
    assert top.class_idx.tolist() == [[1, 2, 0]]
