"""The `model` commands: what their flags take, and errors that speak of the flags; on real ONNX files."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from sparkinfer import cli
from sparkinfer.core.errors import ModelError, SpecError
from sparkinfer.driver.model import model
from sparkinfer.driver.specs.flags import flags_named, preprocess_flag


@pytest.fixture
def nhwc(tmp_path):
    """Takes uint8 [n, 8, 8, 3]; gives channel means, and then twice these."""
    nodes = [
        helper.make_node("Cast", ["x"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["floats"], ["means"], axes=[1, 2], keepdims=0),
        helper.make_node("MatMul", ["means", "matrix"], ["twice"]),
    ]
    graph = helper.make_graph(
        nodes,
        "means",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, ["n", 8, 8, 3])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 3]) for name in ("means", "twice")],
        [numpy_helper.from_array(2 * np.eye(3, dtype=np.float32), "matrix")],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_inspect_takes_a_block_and_an_output(nhwc, capsys):
    block = "{layout: nhwc, dtype: uint8, crop: 8}"
    assert cli.main(["model", "inspect", str(nhwc), "--preprocess", block, "--output-name", "twice"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "input x: uint8[?, 8, 8, 3] output twice: float32[?, 3] classes 3" in text


def test_errors_of_inspect_name_its_flags(nhwc, capsys):
    assert cli.main(["model", "inspect", str(nhwc), "--preprocess", "{crop: 8}"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("--preprocess (preprocess.layout): the model wants x: uint8[?, 8, 8, 3]")
    assert "hint: add --preprocess '{layout: nhwc}'" in told
    block = "{layout: nhwc, dtype: uint8, crop: 8}"
    assert cli.main(["model", "inspect", str(nhwc), "--preprocess", block, "--output-name", "no"]) == 2
    assert capsys.readouterr().err == "--output-name: the model has no output 'no'\n  allowed: means, twice\n"


@pytest.mark.parametrize("command", ["inspect", "optimize"])
@pytest.mark.parametrize("text", ["[", "5", "[1, 2]", "", "{a: b"])
def test_text_that_is_no_block_is_one_message(nhwc, capsys, command, text):
    images = ["--images", str(nhwc.parent)] if command == "optimize" else []
    assert cli.main(["model", command, str(nhwc), "--preprocess", text, *images]) == 2
    told = capsys.readouterr().err
    assert told.startswith("--preprocess: ")
    assert "hint: for example --preprocess imagenet" in told
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (None, None),
        ("imagenet", "imagenet"),
        ("ResNet50_Weights.IMAGENET1K_V2", "ResNet50_Weights.IMAGENET1K_V2"),
        ("{layout: nhwc, crop: 299}", {"layout": "nhwc", "crop": 299}),
        ("crop: null", {"crop": None}),
    ],
)
def test_names_and_blocks(text, value):
    assert preprocess_flag(text) == value


@pytest.mark.parametrize(
    ("key", "hint", "named", "told"),
    [
        ("model.input", "name the image input", "--input", "name the image input"),
        ("preprocess.crop", "set preprocess.crop: [30, 40]", "--preprocess (preprocess.crop)", "{crop: [30, 40]}'"),
        ("preprocess.channels", "set preprocess.channels: rgb (or bgr)", None, "'{channels: rgb}' (or bgr)"),
        ("model.digest", None, "FILE (model.digest)", None),
        ("sink.path", None, "sink.path", None),
        (None, None, None, None),
    ],
)
def test_keys_become_flags(key, hint, named, told):
    with pytest.raises(ModelError) as caught, flags_named():
        raise ModelError("wrong", key=key, hint=hint)
    assert named is None or caught.value.key == named
    assert caught.value.hint == told or caught.value.hint.endswith(told)


def test_a_block_with_a_wrong_key_is_told(nhwc):
    with pytest.raises(SpecError, match="unknown key"):
        model(str(nhwc), preprocess=preprocess_flag("{layot: nhwc}"))
