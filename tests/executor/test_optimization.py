"""The whole of it in this process, on networks small enough to be quantised in a blink."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from sparkinfer.core.errors import ModelError, SourceError, SpecError
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.executor import trial
from sparkinfer.executor.optimization import optimize
from sparkinfer.executor.optimization_report import REPORT, REQUEST, OptimizeRequest
from sparkinfer.executor.trial import Difference, compare, read_pictures, split

SIDE = 8
SPEC = PreprocessSpec(preset="none", crop=SIDE, resize=SIDE)
ROOT = Path(__file__).parents[2]


def save_red_or_not(path, *, colour=1.0, decision=1.0, activation=None):
    """Two classes: the mean of red is above one half, or not. Scores are green -+ colour * decision * (red - 1/2).

    In float32 that is exact enough however small `colour` and `decision` are; in 8 bits it is not.
    """
    kernel = np.array([[0, 1, 0], [colour, 0, 0]], np.float32).reshape(2, 3, 1, 1)
    matrix = np.array([[1, -decision], [1, decision]], np.float32)
    weights = {"kernel": kernel, "bias": np.array([0, -colour / 2], np.float32), "matrix": matrix}
    nodes = [
        helper.make_node("Conv", ["input", "kernel", "bias"], ["maps"]),
        helper.make_node("GlobalAveragePool", ["maps"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["features"]),
        helper.make_node("Gemm", ["features", "matrix"], ["scores"], transB=1),
    ]
    if activation:
        nodes.append(helper.make_node(activation, ["scores"], ["out"]))
    graph = helper.make_graph(
        nodes,
        "red",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["n", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("out" if activation else "scores", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def save_images(folder, count=30):
    """Flat pictures: red is at least 20 levels from the middle, by turns below and above; green varies."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(count):
        red = 148 + rng.integers(0, 100) if number % 2 else 107 - rng.integers(0, 100)
        Image.new("RGB", (SIDE, SIDE), (int(red), int(rng.integers(0, 256)), 7)).save(folder / f"{number}.png")
    return tuple(str(path) for path in folder.iterdir())


@pytest.fixture
def asked(tmp_path):
    def ask(*forms, images=None, model=None, **changes):
        return OptimizeRequest(
            model=str(model or save_red_or_not(tmp_path / "red.onnx")),
            images=images or save_images(tmp_path / "images"),
            outputs={form: str(tmp_path / "out" / f"{form}.onnx") for form in forms},
            **{"preprocess": SPEC, **changes},
        )

    return ask


def said():
    lines = []
    return lines, lines.append


def test_every_form_is_compared_with_the_original(asked, tmp_path):
    report = optimize(asked("optimized", "fp16", "int8"), print)
    assert [variant.name for variant in report.variants] == ["original", "optimized", "fp16", "int8"]
    assert [variant.agreement for variant in report.variants] == [1, 1, 1, 1]
    assert report.variants[1].max_confidence_change < 1e-4
    assert all(variant.images_per_second > 0 for variant in report.variants)
    for variant in report.variants[1:]:
        assert variant.bytes == Path(variant.path).stat().st_size
        onnx.checker.check_model(variant.path)
    assert (report.preprocess.dtype, report.preprocess.layout) == ("uint8", "nhwc")
    assert (report.calibrated, report.compared, report.held_out, report.unreadable) == (10, 20, True, 0)
    assert [attempt.settings for attempt in report.attempts] == ["minmax, U8S8, per channel"]
    digest = subprocess.run(["sha256sum", tmp_path / "red.onnx"], capture_output=True, text=True, check=True).stdout
    assert report.source_digest == digest.split()[0]


def test_the_output_that_is_named_is_compared(asked, tmp_path):
    """An embedding comes first: by default it would be taken for the scores, as in a job."""
    path = save_red_or_not(tmp_path / "red.onnx")
    model = onnx.load(path)
    model.graph.output.insert(0, helper.make_tensor_value_info("features", TensorProto.FLOAT, ["n", 2]))
    onnx.save(model, path)
    report = optimize(asked("optimized", model=path, output="scores"), print)
    assert report.scores == "scores: float32[?, 2]"
    assert [output.name for output in onnx.load(report.variants[1].path).graph.output] == ["features", "scores"]
    report = optimize(asked("optimized", model=path, images=tuple(map(str, (tmp_path / "images").iterdir()))), print)
    assert report.scores == "features: float32[?, 2]"


def test_a_model_without_layers_has_no_int8_form(asked, tmp_path):
    graph = helper.make_graph(
        [helper.make_node("ReduceMean", ["input"], ["means"], axes=[2, 3], keepdims=0)],
        "means",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["n", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("means", TensorProto.FLOAT, ["n", 3])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="nothing in the model can be quantised") as caught:
        optimize(asked("int8", model=tmp_path / "m.onnx"), print)
    assert (caught.value.key, caught.value.hint) == ("int8", "leave INT8 out")
    assert not (tmp_path / "out").exists()


def test_without_folding_the_files_take_what_the_original_took(asked):
    report = optimize(asked("optimized", fold=False), print)
    assert report.preprocess == SPEC
    (takes,) = onnx.load(report.variants[1].path).graph.input
    assert takes.type.tensor_type.elem_type == TensorProto.FLOAT


def test_weights_that_one_byte_cannot_hold_stay_in_float(asked, tmp_path):
    model = save_red_or_not(tmp_path / "m.onnx", decision=0.002)
    lines, say = said()
    report = optimize(asked("int8", model=model), say)
    assert report.variants[1].agreement >= 0.98
    assert len(report.attempts) > 6
    assert all(attempt.agreement < 0.98 for attempt in report.attempts[:6])
    assert "1 most sensitive layers in float" in report.variants[1].settings
    assert any("ranking 2 layers" in line for line in lines)


def test_int8_that_loses_answers_is_not_written(asked, tmp_path):
    model = save_red_or_not(tmp_path / "m.onnx", colour=1e-5)
    with pytest.raises(ModelError, match="INT8 does not keep this model's answers: of 7 settings") as caught:
        optimize(asked("fp16", "int8", model=model), print)
    assert "98.0% are asked for; nothing was written" in caught.value.message
    assert caught.value.key == "min_agreement"
    assert not (tmp_path / "out").exists()


def test_half_precision_that_overflows_is_not_written(asked, tmp_path):
    model = save_red_or_not(tmp_path / "m.onnx", colour=1e5, decision=10)
    with pytest.raises(ModelError):
        optimize(asked("fp16", model=model), print)
    assert not (tmp_path / "out").exists()


def test_few_images_serve_for_both_and_the_report_says_so(asked, tmp_path):
    report = optimize(asked("int8", images=save_images(tmp_path / "few", count=6), min_agreement=0.5), print)
    assert (report.calibrated, report.compared, report.held_out) == (6, 6, False)


def test_files_that_do_not_decode_are_left_out_and_counted(asked, tmp_path):
    images = save_images(tmp_path / "mixed", count=4)
    (tmp_path / "mixed" / "notes.txt").write_text("not an image")
    report = optimize(
        asked("optimized", images=(*images, str(tmp_path / "mixed" / "notes.txt"), str(tmp_path / "gone.jpg"))), print
    )
    assert (report.compared, report.unreadable) == (4, 2)
    with pytest.raises(SourceError, match="none of 1 files is an image"):
        optimize(asked("optimized", images=(str(tmp_path / "mixed" / "notes.txt"),)), print)


def test_labels_must_fit(asked, tmp_path):
    with pytest.raises(ModelError, match="3 labels for 2 classes"):
        optimize(asked("optimized", labels=("a", "b", "c")), print)
    assert not (tmp_path / "out").exists()
    request = replace(asked("optimized", images=save_images(tmp_path / "other")), labels=("no", "red"))
    report = optimize(request, print)
    metadata = {entry.key: entry.value for entry in onnx.load(report.variants[1].path).metadata_props}
    assert json.loads(metadata["labels"]) == ["no", "red"]


def test_a_file_made_here_needs_no_block(asked, tmp_path):
    first = optimize(asked("optimized"), print)
    again = optimize(
        asked("fp16", model=first.variants[1].path, images=save_images(tmp_path / "more"), preprocess=None), print
    )
    assert again.preprocess == first.preprocess
    assert again.variants[1].agreement == 1


def test_probabilities_are_compared_as_they_are(asked, tmp_path):
    model = save_red_or_not(tmp_path / "m.onnx", colour=30, activation="Softmax")
    report = optimize(asked("fp16", model=model), print)
    assert report.variants[1].max_confidence_change < 0.05


def test_pictures_of_open_size_are_refused():
    with pytest.raises(SpecError, match="one size"):
        read_pictures(["a.png"], PreprocessSpec(resize=256, crop=None))


def test_of_many_files_some_are_taken_the_same_ones_each_time(tmp_path, monkeypatch):
    monkeypatch.setattr(trial, "MOST_PICTURES", 5)
    files = save_images(tmp_path / "images", count=9)
    one, other = (read_pictures(given, SPEC).pictures for given in (files, files[::-1]))
    assert len(one) == 5
    assert [picture.tobytes() for picture in one] == [picture.tobytes() for picture in other]


def test_calibration_and_comparison_share_no_picture():
    pictures = [Image.new("L", (1, 1), level) for level in range(100)]
    calibration, compared, apart = split(pictures, calibrate=True)
    assert apart
    assert (len(calibration), len(compared)) == (33, 67)
    assert sorted(picture.getpixel((0, 0)) for picture in calibration + compared) == list(range(100))
    assert split(pictures, calibrate=False) == ([], pictures, True)


def test_agreement_and_change_by_hand():
    original = np.log(np.array([[0.7, 0.2, 0.1], [0.4, 0.35, 0.25]], np.float32))
    other = np.log(np.array([[0.6, 0.3, 0.1], [0.35, 0.4, 0.25]], np.float32))
    found = compare(other, original)
    assert found.agreement == 0.5
    assert found.max_confidence_change == pytest.approx(0.1, abs=1e-6)
    probabilities = compare(np.exp(other), np.exp(original))
    # changes -0.1, 0.1, 0 and -0.05, 0.05, 0: variances 0.02 / 3 and 0.005 / 3
    assert probabilities == Difference(0.5, pytest.approx(0.1, abs=1e-6), pytest.approx(0.025 / 6, rel=1e-5))
    assert compare(original + 5, original) == Difference(1, pytest.approx(0, abs=1e-6), pytest.approx(0, abs=1e-10))


def talk(request, environment=None):
    done = subprocess.run(
        [sys.executable, "-m", "sparkinfer.executor.optimization"],
        input=REQUEST.dump_json(request),
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
    )
    return [json.loads(line) for line in io.BytesIO(done.stdout)]


def test_the_process_answers_in_json_lines(asked):
    *progress, last = talk(asked("optimized"))
    assert progress
    assert all(list(line) == ["progress"] for line in progress)
    assert REPORT.validate_python(last["report"]).variants[1].agreement == 1


def test_the_process_answers_errors(asked):
    last = talk(asked("optimized", labels=("a",)))[-1]
    assert last["error"]["type"] == "ModelError"
    assert last["error"]["key"] == "model.labels"
