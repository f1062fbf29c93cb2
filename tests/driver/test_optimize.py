from __future__ import annotations

import io
import os
import signal
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from rich.console import Console

from sparkinfer.core.errors import ModelError, SinkError, SourceError, SpecError
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.driver import helper_process
from sparkinfer.driver import optimize as module
from sparkinfer.driver.helper_process import run_helper
from sparkinfer.driver.optimize import optimize, optimize_command
from sparkinfer.executor.optimization_report import REPORT, REQUEST, Attempt, OptimizeReport, Variant

SIDE = 8
BLOCK = {"preset": "none", "resize": SIDE, "crop": SIDE}
DEMO = Path(__file__).parents[2] / "build" / "demo"


@pytest.fixture
def model(tmp_path):
    """Scores are ten times the channel means."""
    weights = {"kernel": 10 * np.eye(3, dtype=np.float32).reshape(3, 3, 1, 1)}
    nodes = [
        helper.make_node("Conv", ["input", "kernel"], ["maps"]),
        helper.make_node("ReduceMean", ["maps"], ["scores"], axes=[2, 3], keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "means",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["n", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 3])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    path = tmp_path / "means.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture
def images(tmp_path):
    """One channel is far above the others, so that no rounding changes the answer."""
    folder = tmp_path / "images"
    (folder / "deeper").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(24):
        colour = rng.integers(0, 100, 3)
        colour[number % 3] += 150
        Image.new("RGB", (10, 9), tuple(colour.tolist())).save(
            folder / ("deeper" if number % 2 else "") / f"{number}.png"
        )
    (folder / ".hidden.png").write_bytes(b"")
    return folder


def test_end_to_end(model, images, tmp_path):
    (tmp_path / "labels.txt").write_text("red\ngreen\nblue\n")
    said = []
    report = optimize(
        str(model),
        str(images),
        preprocess=BLOCK,
        labels=str(tmp_path / "labels.txt"),
        fp16=True,
        int8=True,
        say=said.append,
    )
    assert [(variant.name, variant.agreement) for variant in report.variants] == [
        ("original", 1),
        ("fp16", 1),
        ("int8", 1),
    ]
    assert (report.compared, report.calibrated, report.unreadable) == (16, 8, 0)
    assert said[-1] == "measuring speed"
    for form in ("fp16", "int8"):
        metadata = {e.key: e.value for e in onnx.load(tmp_path / f"means.{form}.onnx").metadata_props}
        assert metadata["sparkinfer.source_digest"] == report.source_digest
        assert metadata["labels"] == '["red", "green", "blue"]'


def command(*given, **options):
    out = io.StringIO()
    optimize_command(*map(str, given), console=Console(file=out, width=160), **options)
    return out.getvalue()


def test_the_command_prints_what_a_person_needs(model, images, tmp_path):
    text = command(model, images, preprocess=BLOCK, output=str(tmp_path / "a.onnx"))
    assert "agreement" in text
    assert "100.0%" in text
    assert "compared on 24 images; speed with 1 threads" in text
    assert "answers are those of the output scores: float32[?, 3]" in text
    assert f"wrote {tmp_path / 'a.onnx'}" in text
    assert "use with  preprocess: {preset: none, resize: 8, crop: 8, dtype: uint8, layout: nhwc}" in text
    assert (tmp_path / "a.onnx").is_file()


def report_of(**changes):
    variants = (
        Variant("original", "m.onnx", 4000, 100.0, 1.0, 0.0, "as it is", {}),
        Variant("fp16", "m.fp16.onnx", 2000, 50.0, 0.995, 0.0123, "FP16", {"session": {"a": "b"}}),
    )
    given = {
        "source_digest": "ab" * 32,
        "variants": variants,
        "preprocess": PreprocessSpec(dtype="uint8", layout="nhwc"),
        "scores": "scores: float32[?, 3]",
        "nodes": (10, 9, 8),
        "compared": 200,
        "calibrated": 0,
        "held_out": True,
        "unreadable": 0,
        "attempts": (),
        "batch_size": 8,
        "threads": 1,
    }
    return OptimizeReport(**{**given, **changes})


def printed(monkeypatch, report):
    monkeypatch.setattr(module, "optimize", lambda *_, **__: report)
    return command("m.onnx", "images")


def test_a_slower_form_is_called_slower(monkeypatch):
    text = printed(monkeypatch, report_of())
    assert "x0.50" in text
    assert "99.5%" in text
    assert "0.012" in text
    assert "fp16 is 2.00 times slower than the original here" in text
    assert "on a CPU, fp16 needs model.options: {session: {a: b}}" in text


def test_int8_tells_what_it_tried(monkeypatch):
    attempts = (Attempt("minmax", 0.9, 0.2), Attempt("entropy", 0.99, 0.1))
    text = printed(monkeypatch, report_of(attempts=attempts, calibrated=100, held_out=False, unreadable=2))
    assert "the same as the 100 calibrated on; 2 INT8 settings tried; 2 files did not decode" in text
    assert "tried INT8 minmax: agreement 90.0%" in text
    assert "tried INT8 entropy" not in text  # that is the one in the table


@pytest.fixture
def request_of(monkeypatch):
    """What `optimize` would send to its helper."""

    def of(*given, **options):
        sent = []

        def stand_in(_module, request, _say):
            sent.append(request)
            return {"report": REPORT.dump_python(report_of(), mode="json")}

        monkeypatch.setattr(module, "run_helper", stand_in)
        optimize(*map(str, given), **options)
        return REQUEST.validate_json(sent[0])

    return of


def test_where_the_files_go(request_of, model, images, tmp_path):
    def outputs(**options):
        return {
            form: str(Path(path).relative_to(tmp_path))
            for form, path in request_of(model, images, **options).outputs.items()
        }

    assert outputs() == {"optimized": "means.optimized.onnx"}
    assert outputs(fp16=True) == {"fp16": "means.fp16.onnx"}
    assert outputs(fp16=True, int8=True) == {"fp16": "means.fp16.onnx", "int8": "means.int8.onnx"}
    assert outputs(int8=True, output=str(tmp_path / "x.onnx")) == {"int8": "x.onnx"}
    both = outputs(fp16=True, int8=True, output=str(tmp_path / "x.onnx"))
    assert both == {"fp16": "x.fp16.onnx", "int8": "x.int8.onnx"}
    assert outputs(output=str(images)) == {"optimized": "images/means.optimized.onnx"}


def test_the_model_is_never_overwritten(request_of, model, images, tmp_path):
    (tmp_path / "link.onnx").symlink_to(model)
    for output in (model, tmp_path / "link.onnx"):
        with pytest.raises(SpecError, match="is the model itself"):
            request_of(model, images, output=str(output))


def test_images_are_a_folder_a_file_or_a_glob(request_of, model, images):
    def names(location):
        return sorted(Path(path).name for path in request_of(model, location).images)

    everything = sorted(f"{number}.png" for number in range(24))
    assert names(images) == everything  # hidden files are no data, folders inside are
    assert names(images / "0.png") == ["0.png"]
    assert names(images / "*2.png") == ["12.png", "2.png", "22.png"]
    assert names(images / "*") == [name for name in everything if int(name.split(".")[0]) % 2 == 0]


def test_a_block_keeps_what_was_set(request_of, model, images):
    given = request_of(model, images, preprocess="ResNet50_Weights.IMAGENET1K_V2").preprocess
    assert given.is_weights_enum
    assert given.model_fields_set == {"preset"}
    assert request_of(model, images).preprocess is None
    assert request_of(model, images, preprocess=PreprocessSpec(crop=SIDE)).preprocess == PreprocessSpec(crop=SIDE)


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"min_agreement": 1.5}, SpecError, "1.5 is no share"),
        ({"threads": 0}, SpecError, "0 threads"),
        ({"preprocess": "imagnet"}, SpecError, "imagnet"),
        ({"labels": "nowhere.txt"}, ModelError, "does not exist"),
    ],
)
def test_arguments_that_are_wrong(request_of, model, images, options, error, match):
    with pytest.raises(error, match=match):
        request_of(model, images, **options)


def test_files_that_are_not_there(request_of, model, images, tmp_path):
    with pytest.raises(ModelError, match="does not exist"):
        request_of(tmp_path / "no.onnx", images)
    with pytest.raises(ModelError, match="is a folder"):
        request_of(tmp_path, images)
    with pytest.raises(ModelError, match="not a local file"):
        request_of("hdfs://host/m.onnx", images)
    with pytest.raises(SourceError, match="is not local"):
        request_of(model, "hdfs://host/images")
    with pytest.raises(SourceError, match="holds no files"):
        request_of(model, tmp_path / "nothing-*.jpg")


def test_names_of_input_and_output_are_passed_on(request_of, model, images):
    given = request_of(model, images, input_name="input", output_name="scores")
    assert (given.input, given.output) == ("input", "scores")
    given = request_of(model, images)
    assert (given.input, given.output) == (None, None)


def test_labels_that_are_no_text(request_of, model, images, tmp_path):
    (tmp_path / "labels.txt").write_bytes(b"r\xff\n")
    with pytest.raises(ModelError, match="not UTF-8 text") as caught:
        request_of(model, images, labels=str(tmp_path / "labels.txt"))
    assert (caught.value.key, bool(caught.value.hint)) == ("model.labels", True)


def test_a_place_that_cannot_be_written_is_told_at_once(request_of, model, images, tmp_path):
    for output in ("/proc/nowhere/a.onnx", tmp_path / "means.onnx" / "a.onnx"):
        with pytest.raises(SinkError, match="cannot be written") as caught:
            request_of(model, images, output=str(output))
        assert (caught.value.key, bool(caught.value.hint)) == ("output", True)
    request_of(model, images, output=str(tmp_path / "new" / "deep" / "a.onnx"))
    assert not (tmp_path / "new").exists()


def test_the_original_counts_its_external_weights(images, tmp_path, model):
    original = onnx.load(model)
    onnx.save(original, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    report = optimize(str(tmp_path / "m.onnx"), str(images), preprocess=BLOCK)
    assert report.variants[0].bytes == (tmp_path / "m.onnx").stat().st_size + (tmp_path / "m.data").stat().st_size


def helper_that(monkeypatch, tmp_path, code):
    (tmp_path / "stand_in.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return run_helper("stand_in", b"request", lambda _: None)


def test_a_helper_that_crashes_is_one_message(monkeypatch, tmp_path):
    crash = f"import os; os.kill(os.getpid(), {signal.SIGSEGV.value})"
    with pytest.raises(ModelError, match="ended by SIGSEGV after 'halfway'"):
        helper_that(monkeypatch, tmp_path, """print('{"progress": "halfway"}', flush=True); """ + crash)
    with pytest.raises(ModelError, match=r"exit status 1: .*ZeroDivisionError"):
        helper_that(monkeypatch, tmp_path, "1 / 0")


def test_a_helper_reads_its_request_and_finds_the_package(monkeypatch, tmp_path):
    code = "import json, sys, sparkinfer; print(json.dumps({'read': sys.stdin.read(), 'file': sparkinfer.__file__}))"
    assert helper_that(monkeypatch, tmp_path, code) == {"read": "request", "file": sys.modules["sparkinfer"].__file__}


def test_a_helper_dies_with_its_caller(monkeypatch, tmp_path):
    code = "import json, os, time; print(json.dumps({'progress': str(os.getpid())}), flush=True); time.sleep(600)"
    (tmp_path / "stand_in.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    pids = []

    def interrupt(text):
        pids.append(int(text))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_helper("stand_in", b"", interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_helpers_see_no_gpu():
    assert helper_process.environment()["CUDA_VISIBLE_DEVICES"] == ""


@pytest.mark.slow
def test_efficientnet_lite0_keeps_its_answers(tmp_path):
    """With ImageNet weights and real photographs, enlarged to enough of them by cutting them up."""
    crops = tmp_path / "crops"
    crops.mkdir()
    for path in (DEMO / "images").iterdir():
        photo = Image.open(path).convert("RGB")
        width, height = photo.size
        for number in range(4):
            left, top = number % 2 * width // 4, number // 2 * height // 4
            photo.crop((left, top, left + 3 * width // 4, top + 3 * height // 4)).save(
                crops / f"{path.stem}{number}.png"
            )
    report = optimize(
        str(DEMO / "efficientnet_lite0.onnx"),
        str(crops),
        output=str(tmp_path / "m.onnx"),
        fp16=True,
        int8=True,
        min_agreement=0.85,
    )
    original, half, int8 = report.variants
    assert half.agreement > 0.9  # cut-up photographs are near ties
    assert half.bytes < 0.52 * original.bytes
    assert half.max_confidence_change < 0.02
    assert int8.agreement >= 0.85
    assert int8.bytes < 0.75 * original.bytes
    assert report.held_out
