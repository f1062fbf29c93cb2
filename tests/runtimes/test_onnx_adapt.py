"""A folded file has its own recipe: a job may state the same, or nothing, and nothing else."""

from __future__ import annotations

import pytest

from sparkinfer.core.errors import SpecError
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.core.registry import create_runtime
from sparkinfer.runtimes._onnx_graph import fold_file

RECIPE = {"resize": 40, "crop": 32, "mean": (0.5, 0.4, 0.3), "std": (0.5,), "channels": "bgr"}
LEFT = {"resize": 40, "crop": 32, "dtype": "uint8", "layout": "nhwc", "channels": "rgb"}


@pytest.fixture
def folded_with(onnx_case, tmp_path):
    """A file folded with these keys."""

    def fold(**keys):
        return fold_file(onnx_case.path, tmp_path / "folded.onnx", PreprocessSpec(**keys)).path

    return fold


@pytest.mark.parametrize(
    "job",
    [
        {},  # nothing is stated
        RECIPE,  # what the model was trained with, and any part of it
        {"mean": (0.5, 0.4, 0.3), "std": (0.5, 0.5, 0.5)},
        {"channels": "bgr"},
        {"crop": (32, 32)},
        LEFT,  # what `model optimize` prints
        {"dtype": "uint8", "layout": "nhwc"},
        {"preset": "imagenet", **LEFT, "mean": (0.3, 0.4, 0.5), "std": (0.5,)},
    ],
)
def test_a_job_works_unchanged_with_the_folded_file(folded_with, job):
    left = create_runtime("onnx").adapt(str(folded_with(**RECIPE)), PreprocessSpec(**job))
    assert {key: getattr(left, key) for key in LEFT} == LEFT


def test_keys_that_are_no_part_of_a_recipe_stay_the_jobs(folded_with):
    left = create_runtime("onnx").adapt(str(folded_with(**RECIPE)), PreprocessSpec(exif=False, max_pixels=99))
    assert (left.exif, left.max_pixels, left.resize, left.dtype) == (False, 99, 40, "uint8")


def test_a_file_that_was_not_folded_takes_what_the_job_states(onnx_case):
    job = PreprocessSpec(resize=40, crop=32, mean=(0.5,))
    assert create_runtime("onnx").adapt(str(onnx_case.path), job) == job


@pytest.mark.parametrize(
    ("job", "told"),
    [
        # The preset's name states all of it, its defaults too.
        ({"preset": "imagenet"}, "resize 256 (the file's: 40), crop [224, 224] (the file's: [32, 32]), mean [0.485"),
        ({"preset": "imagenet-inception"}, "crop [299, 299] (the file's: [32, 32])"),
        ({"mean": (0.485, 0.456, 0.406)}, "mean [0.485, 0.456, 0.406] (the file's: [0.5, 0.4, 0.3])"),
        ({"std": (0.25,)}, "std [0.25, 0.25, 0.25] (the file's: [0.5, 0.5, 0.5])"),
        ({"resize": 256}, "resize 256 (the file's: 40)"),
        ({"interpolation": "bicubic"}, "interpolation bicubic (the file's: bilinear)"),
        ({**LEFT, "channels": "bgr"}, "channels bgr (the file's: rgb)"),
    ],
)
def test_a_job_that_states_another_recipe_than_the_files_is_refused(folded_with, job, told):
    path = folded_with(**RECIPE)
    with pytest.raises(SpecError) as caught:
        create_runtime("onnx").adapt(str(path), PreprocessSpec(**job))
    assert told in caught.value.message
    assert "has its own preprocessing" in caught.value.message
    assert (caught.value.key, len(caught.value.render().splitlines())) == ("preprocess", 2)
