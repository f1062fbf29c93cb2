"""The first answers of a task: what is no probability, never finite, or always the same ends it, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from sparkinfer.core.errors import ModelError
from sparkinfer.core.model_spec import PostprocessSpec
from sparkinfer.executor.sanity import FIRST, Sanity
from tests.executor.chain import batch, fake_plan, png_of, run

IMAGES = np.arange(FIRST * 4, dtype=np.uint8).reshape(FIRST, 2, 2)
"""All different."""


def scores(*rows):
    return np.array(rows, np.float32)


def answers(seed=0, rows=FIRST):
    return np.random.default_rng(seed).normal(0, 3, (rows, 4)).astype(np.float32)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_logits_of_any_size_are_sane(activation):
    Sanity(activation).look(IMAGES, answers() * 1e4)


def test_probabilities_are_sane_where_the_model_gives_them():
    given = np.full((FIRST, 2), 0.5, np.float32)
    given[:, 0] += np.linspace(-0.5, 0.5, FIRST, dtype=np.float32)
    Sanity("none").look(IMAGES, given)


@pytest.mark.parametrize("wrong", [7.25, -0.5])
def test_a_score_outside_0_to_1_is_no_probability(wrong):
    with pytest.raises(ModelError, match=f"no probabilities: one is {wrong}") as error:
        Sanity("none").look(IMAGES[:1], scores([0.1, wrong, 0.2]))
    assert error.value.key == "postprocess.activation"


def test_half_precision_rounds_above_1():
    Sanity("none").look(IMAGES[:1], scores([1.0005, 0.0]))


def test_ten_different_images_with_one_answer_are_a_broken_model():
    with pytest.raises(ModelError, match="same answer for 10 different images"):
        Sanity("softmax").look(IMAGES, np.ones((FIRST, 3), np.float32))


def test_batches_add_up():
    sanity = Sanity("softmax")
    sanity.look(IMAGES[:6], np.ones((6, 3), np.float32))
    with pytest.raises(ModelError, match="same answer"):
        sanity.look(IMAGES[6:], np.ones((4, 3), np.float32))


def test_one_image_many_times_may_have_one_answer():
    Sanity("softmax").look(np.zeros((50, 2, 2), np.uint8), np.ones((50, 3), np.float32))


def test_nine_different_images_may_have_one_answer():
    Sanity("softmax").look(IMAGES[:9], np.ones((9, 3), np.float32))


def test_one_answer_that_differs_is_enough():
    given = np.ones((FIRST, 3), np.float32)
    given[7, 1] = 1.5
    Sanity("softmax").look(IMAGES, given)


def test_nothing_finite_is_a_broken_model():
    with pytest.raises(ModelError, match="NaN or infinity for each of the first 10"):
        Sanity("softmax").look(IMAGES, np.full((FIRST, 3), np.nan, np.float32))


def test_one_finite_answer_leaves_the_others_to_their_rows():
    given = np.full((FIRST, 3), np.nan, np.float32)
    given[3] = 0
    Sanity("none").look(IMAGES, given)


def test_later_answers_are_not_looked_at():
    sanity = Sanity("none")
    sanity.look(IMAGES, np.linspace(0, 1, FIRST, dtype=np.float32)[:, None])
    sanity.look(IMAGES[:1] + 100, scores([50.0]))


def test_a_task_of_a_blind_model_fails_and_the_check_can_be_turned_off(tmp_path):
    rows = batch(*(png_of(10 * i, 0, 0) for i in range(12)))
    with pytest.raises(ModelError, match="same answer"):
        run(fake_plan(tmp_path, blind=True, postprocess=PostprocessSpec(activation="softmax")), rows)
    unchecked = PostprocessSpec(activation="softmax", check=False)
    assert len(run(fake_plan(tmp_path, blind=True, postprocess=unchecked), rows)) == 12


def test_a_small_task_is_judged_at_its_end(tmp_path):
    rows = batch(*(png_of(10 * i, 0, 0) for i in range(5)))
    with pytest.raises(ModelError, match="same answer for 5 different images"):
        run(fake_plan(tmp_path, blind=True, postprocess=PostprocessSpec(activation="softmax")), rows)


def test_four_images_are_too_few_to_judge(tmp_path):
    rows = batch(*(png_of(10 * i, 0, 0) for i in range(4)))
    assert len(run(fake_plan(tmp_path, blind=True, postprocess=PostprocessSpec(activation="softmax")), rows)) == 4
