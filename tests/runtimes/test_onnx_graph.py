from __future__ import annotations

import hashlib
import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from sparkinfer.core.errors import ModelError, SpecError
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.executor.preprocess import Preprocessor
from sparkinfer.runtimes._onnx_file import stored_preprocess
from sparkinfer.runtimes._onnx_graph import fold_file, fold_preprocess, folded_spec
from tests.images import quarters

MEAN = (0.1, 0.2, 0.4)
STD = (0.5, 0.25, 0.2)


def echo(shape, dtype=TensorProto.FLOAT, opset=17, ir_version=8):
    """A model that answers its input: what comes out is what normalisation gave."""
    graph = helper.make_graph(
        [helper.make_node("Neg", ["input"], ["minus"]), helper.make_node("Neg", ["minus"], ["output"])],
        "echo",
        [helper.make_tensor_value_info("input", dtype, shape)],
        [helper.make_tensor_value_info("output", dtype, ["a", "b", "c", "d"])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir_version)


def run(model, images, name="input"):
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {name: images})[0]


def images(channels=3, rows=2):
    return np.random.default_rng(0).integers(0, 256, (rows, 5, 7, channels), np.uint8)


def spec(**changes):
    return PreprocessSpec.model_validate({"resize": None, "crop": (5, 7), "mean": MEAN, "std": STD, **changes})


def normalised(pixels, given):
    """By arithmetic, in float64, straight from the spec's definition."""
    values = pixels.astype(np.float64)
    if given.channels == "bgr":
        values = values[..., ::-1]
    values = (values * given.rescale - np.array(given.mean)) / np.array(given.std)
    return values.transpose(0, 3, 1, 2) if given.layout == "nchw" else values


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"channels": "bgr"},
        {"channels": "grey", "mean": (0.3,), "std": (0.2,)},
        {"mean": (0.5,), "std": STD},
        {"rescale": 1 / 128, "mean": (1.0,), "std": (1.0,)},
    ],
    ids=["rgb", "bgr", "grey", "one mean", "rescale"],
)
def test_the_folded_graph_normalises(layout, dtype, changes):
    given = spec(layout=layout, dtype=dtype, **changes)
    kind = TensorProto.FLOAT if dtype == "float32" else TensorProto.FLOAT16
    channels = given.num_channels
    model = echo(["batch", channels, 5, 7] if layout == "nchw" else ["batch", 5, 7, channels], kind)
    assert fold_preprocess(model, given)
    onnx.checker.check_model(model, full_check=True)
    pixels = images(channels)
    found = run(model, pixels)
    assert found.dtype == dtype
    precision = 1e-6 if dtype == "float32" else 2**-10
    np.testing.assert_allclose(found, normalised(pixels, given), rtol=precision, atol=precision)


def shape_of(model):
    dims = model.graph.input[0].type.tensor_type.shape.dim
    return [dim.dim_value or dim.dim_param or None for dim in dims]


@pytest.mark.parametrize(
    ("shape", "folded"),
    [
        (["n", 3, 5, 7], ["n", 5, 7, 3]),
        ([2, 3, "h", "w"], [2, "h", "w", 3]),
        ([None, None, None, None], [None, None, None, 3]),
        (None, [None, None, None, 3]),
    ],
)
def test_fixed_named_and_open_dimensions_stay_so(shape, folded):
    model = echo(shape)
    assert fold_preprocess(model, spec())
    assert shape_of(model) == folded
    np.testing.assert_allclose(run(model, images()), normalised(images(), spec()), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("opset", [7, 11, 13, 21])
def test_opsets(opset):
    model = echo(["n", 3, 5, 7], opset=opset, ir_version=10 if opset == 21 else 3)
    assert fold_preprocess(model, spec(channels="bgr"))
    np.testing.assert_allclose(run(model, images()), normalised(images(), spec(channels="bgr")), rtol=1e-5, atol=1e-6)


def test_an_opset_that_no_longer_runs_is_refused():
    with pytest.raises(ModelError, match="opset is 6"):
        fold_preprocess(echo(["n", 3, 5, 7], opset=6, ir_version=3), spec())


def test_old_files_list_weights_among_the_inputs():
    model = echo(["n", 3, 5, 7], ir_version=3)
    model.graph.node[0].CopyFrom(helper.make_node("Sub", ["zero", "input"], ["minus"]))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.float32), "zero"))
    model.graph.input.append(helper.make_tensor_value_info("zero", TensorProto.FLOAT, [1]))
    assert fold_preprocess(model, spec())
    np.testing.assert_allclose(run(model, images()), normalised(images(), spec()), rtol=1e-5, atol=1e-6)


def test_a_branch_that_takes_the_image_from_outside():
    def branch(kind):
        node = helper.make_node(kind, ["input"], ["answer"])
        return helper.make_graph([node], kind, [], [helper.make_tensor_value_info("answer", TensorProto.FLOAT, None)])

    yes = helper.make_node("Constant", [], ["yes"], value=numpy_helper.from_array(np.array(True)))
    choice = helper.make_node("If", ["yes"], ["output"], then_branch=branch("Neg"), else_branch=branch("Abs"))
    model = echo(["n", 3, 5, 7])
    del model.graph.node[:]
    model.graph.node.extend([yes, choice])
    assert fold_preprocess(model, spec())
    np.testing.assert_allclose(run(model, images()), -normalised(images(), spec()), rtol=1e-5, atol=1e-6)


def test_names_that_are_taken():
    model = echo(["n", 3, 5, 7])
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "input_sparkinfer_0"
    assert fold_preprocess(model, spec())
    np.testing.assert_allclose(run(model, images()), normalised(images(), spec()), rtol=1e-5, atol=1e-6)


PER_CHANNEL = np.array([0.5, -2, 3], np.float32)


def beginning_with(layout, *steps, **model_options):
    """The echo, with arithmetic on the image before it: (operator, constant, image first)."""
    shape = ["n", 3, 5, 7] if layout == "nchw" else ["n", 5, 7, 3]
    model = echo(shape, **model_options)
    tensor = "input"
    for number, (kind, constant, image_first) in enumerate(steps):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(constant, np.float32), f"c{number}"))
        inputs = [tensor, f"c{number}"] if image_first else [f"c{number}", tensor]
        tensor = f"step{number}"
        model.graph.node.insert(number, helper.make_node(kind, inputs, [tensor]))
    model.graph.node[len(steps)].input[0] = tensor
    return model


def applied(values, *steps):
    arithmetic = {"Mul": np.multiply, "Add": np.add, "Sub": np.subtract, "Div": np.divide}
    for kind, constant, image_first in steps:
        wide = np.asarray(constant, np.float64)
        values = arithmetic[kind](values, wide) if image_first else arithmetic[kind](wide, values)
    return values


def kinds(model):
    return [node.op_type for node in model.graph.node if node.op_type != "Constant"]


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_normalisation_that_the_model_begins_with_is_taken_in(layout):
    shape = (3, 1, 1) if layout == "nchw" else (3,)
    steps = [
        ("Mul", PER_CHANNEL.reshape(shape), True),
        ("Add", PER_CHANNEL.reshape(1, *shape) if layout == "nchw" else PER_CHANNEL, False),
        ("Sub", 0.25, True),
        ("Sub", [1.5], False),
        ("Div", PER_CHANNEL.reshape(shape), True),
    ]
    model = beginning_with(layout, *steps)
    given = spec(layout=layout)
    assert fold_preprocess(model, given)
    onnx.checker.check_model(model, full_check=True)
    assert kinds(model) == [*(["Transpose"] if layout == "nchw" else []), "Cast", "Mul", "Add", "Neg", "Neg"]
    assert not model.graph.initializer
    truth = applied(normalised(images(), given), *steps)
    np.testing.assert_allclose(run(model, images()), truth, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "step",
    [
        ("Div", 2.0, False),
        ("Div", [[[1.0]], [[0.0]], [[2.0]]], True),
        ("Mul", np.arange(1.0, 36).reshape(5, 7), True),
        ("Add", np.ones((1, 1, 1, 1, 1)), True),
        ("Pow", 2.0, True),
    ],
    ids=["constant over image", "by zero", "per pixel", "rank 5", "another operator"],
)
def test_other_arithmetic_stays_where_it_is(step):
    model = beginning_with("nchw", step)
    assert fold_preprocess(model, spec())
    assert step[0] in kinds(model)[4:]
    if step[0] == "Pow":
        truth = normalised(images(), spec()) ** 2
    else:
        with np.errstate(divide="ignore"):
            truth = applied(normalised(images(), spec()), step)
    np.testing.assert_allclose(run(model, images()), truth, rtol=1e-4, atol=1e-5)


def test_arithmetic_that_is_an_output_stays():
    model = beginning_with("nchw", ("Mul", 2.0, True))
    model.graph.output.append(helper.make_tensor_value_info("step0", TensorProto.FLOAT, ["a", "b", "c", "d"]))
    assert fold_preprocess(model, spec())
    assert kinds(model) == ["Transpose", "Cast", "Mul", "Add", "Mul", "Neg", "Neg"]
    np.testing.assert_allclose(run(model, images()), 2 * normalised(images(), spec()), rtol=1e-5, atol=1e-5)


def test_arithmetic_that_several_nodes_take():
    model = beginning_with("nchw", ("Mul", 2.0, True), ("Add", 1.0, True))
    model.graph.node[-1].CopyFrom(helper.make_node("Sub", ["minus", "step0"], ["output"]))
    assert fold_preprocess(model, spec())
    assert kinds(model) == ["Transpose", "Cast", "Mul", "Add", "Add", "Neg", "Sub"]
    truth = 2 * normalised(images(), spec())
    np.testing.assert_allclose(run(model, images()), -(truth + 1) - truth, rtol=1e-5, atol=1e-5)


def test_a_constant_that_a_caller_may_replace_stays():
    model = beginning_with("nchw", ("Mul", 2.0, True))
    model.graph.input.append(helper.make_tensor_value_info("c0", TensorProto.FLOAT, []))
    assert fold_preprocess(model, spec(), "input")
    assert kinds(model) == ["Transpose", "Cast", "Mul", "Add", "Mul", "Neg", "Neg"]


def test_the_named_input_of_several():
    model = echo(["n", 3, 5, 7])
    model.graph.input.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, [1]))
    with pytest.raises(ModelError, match="2 inputs") as caught:
        fold_preprocess(model, spec())
    assert caught.value.allowed == ("input", "other")
    with pytest.raises(ModelError, match="no input 'image'"):
        fold_preprocess(model, spec(), "image")
    assert fold_preprocess(model, spec(), "input")


def test_a_model_that_takes_uint8_is_left_alone(tmp_path):
    model = echo(["n", 5, 7, 3])
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    model.graph.node[0].CopyFrom(helper.make_node("Cast", ["input"], ["minus"], to=TensorProto.FLOAT))
    onnx.save(model, tmp_path / "m.onnx")
    done = fold_file(tmp_path / "m.onnx", tmp_path / "folded.onnx", spec())
    assert not done.folded
    assert done.path == tmp_path / "m.onnx"
    assert (done.preprocess.dtype, done.preprocess.layout) == ("uint8", "nhwc")
    assert "nothing to fold" in done.message
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"dtype": "float16"}, "preprocess.dtype"),
        ({"layout": "nhwc"}, "preprocess.layout"),
        ({"channels": "grey", "mean": (0.5,), "std": (0.5,)}, "preprocess.channels"),
        ({"crop": 32}, "preprocess.crop"),
    ],
)
def test_a_block_that_does_not_fit_the_model(changes, key):
    with pytest.raises(ModelError) as caught:
        fold_preprocess(echo(["n", 3, 5, 7]), spec(**changes))
    assert caught.value.key == key


def test_an_input_that_is_an_output_too():
    model = echo(["n", 3, 5, 7])
    model.graph.output[0].name = "input"
    with pytest.raises(ModelError, match="as an output"):
        fold_preprocess(model, spec())


def test_a_weights_enum_must_be_resolved_first():
    with pytest.raises(SpecError, match="resolved"):
        fold_preprocess(echo(["n", 3, 5, 7]), PreprocessSpec.model_validate("ResNet50_Weights.IMAGENET1K_V2"))


@pytest.mark.parametrize("channels", ["rgb", "bgr"])
def test_the_chain_gives_the_same_scores_with_the_folded_file(tmp_path, save_onnx, preprocess, channels):
    source = save_onnx(tmp_path / "m.onnx", metadata={"labels": json.dumps(list("abcde"))})
    given = preprocess.model_copy(update={"channels": channels})
    done = fold_file(source, tmp_path / "folded.onnx", given)

    def scores(path, block):
        preprocessor = Preprocessor(block)
        batch = np.empty((1, *preprocessor.slot_shape(quarters())), preprocessor.dtype)
        preprocessor.write(quarters(), batch[0])
        session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
        return session.run(["logits"], {"input": batch})[0]

    np.testing.assert_allclose(scores(done.path, done.preprocess), scores(source, given), atol=1e-4)


def test_metadata_tells_where_the_file_comes_from_and_keeps_the_labels(tmp_path, save_onnx, preprocess):
    source = save_onnx(tmp_path / "m.onnx", metadata={"labels": json.dumps(list("abcde"))})
    done = fold_file(source, tmp_path / "folded.onnx", preprocess)
    metadata = {entry.key: entry.value for entry in onnx.load(done.path).metadata_props}
    assert json.loads(metadata["labels"]) == list("abcde")
    assert metadata["sparkinfer.source_digest"] == hashlib.sha256(source.read_bytes()).hexdigest()
    assert json.loads(metadata["sparkinfer.folded"]) == {
        "rescale": 1 / 255,
        "mean": [0.485, 0.456, 0.406],
        "std": [0.229, 0.224, 0.225],
        "channels": "rgb",
        "dtype": "float32",
        "layout": "nchw",
    }
    assert stored_preprocess(metadata) == done.preprocess == folded_spec(preprocess)
    assert stored_preprocess({}) is None


def test_the_folded_block_keeps_the_geometry_and_takes_rgb():
    given = spec(channels="bgr", resize=256)
    found = folded_spec(given)
    assert (found.dtype, found.layout, found.channels) == ("uint8", "nhwc", "rgb")
    assert (found.resize, found.crop, found.interpolation) == (256, (5, 7), "bilinear")
    assert (found.mean, found.std) == (MEAN[::-1], STD[::-1])
    assert folded_spec(spec(channels="grey", mean=(0.1,), std=(0.2,))).channels == "grey"


def external(save_onnx, folder):
    source = save_onnx(folder / "m.onnx")
    model = onnx.load(source)
    onnx.save(model, source, save_as_external_data=True, location="m.data", size_threshold=0)
    return source


@pytest.mark.parametrize("elsewhere", [True, False])
def test_weights_in_an_external_file(tmp_path, save_onnx, preprocess, logits, elsewhere):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    source = external(save_onnx, tmp_path / "a")
    target = tmp_path / ("b" if elsewhere else "a") / "folded.onnx"
    done = fold_file(source, target, preprocess)
    weights = onnx.load(target, load_external_data=False).graph.initializer
    assert all(tensor.data_location == TensorProto.EXTERNAL for tensor in weights)
    pixels = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    session = ort.InferenceSession(done.path, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(
        session.run(["logits"], {"input": pixels})[0], logits(normalised(pixels, preprocess)), rtol=1e-4, atol=1e-4
    )
    metadata = {entry.key: entry.value for entry in onnx.load(target, load_external_data=False).metadata_props}
    digest = hashlib.sha256((tmp_path / "a" / "m.data").read_bytes()).hexdigest()
    assert json.loads(metadata["sparkinfer.source_data_digests"]) == {"m.data": digest}


def test_another_models_weights_are_not_overwritten(tmp_path, save_onnx, preprocess):
    (tmp_path / "a").mkdir()
    source = external(save_onnx, tmp_path / "a")
    (tmp_path / "m.data").write_bytes(b"something else")
    with pytest.raises(ModelError, match="in the way"):
        fold_file(source, tmp_path / "folded.onnx", preprocess)
    assert (tmp_path / "m.data").read_bytes() == b"something else"
    assert not (tmp_path / "folded.onnx").exists()


def test_weights_outside_the_models_folder_are_refused(tmp_path, save_onnx, preprocess):
    source = external(save_onnx, tmp_path)
    model = onnx.load(source, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = "../m.data"
    source.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="outside its own folder"):
        fold_file(source, tmp_path / "folded.onnx", preprocess)


@pytest.mark.parametrize("content", [None, b"", b"not a model", b"\x08\x07"])
def test_files_that_are_no_models(tmp_path, preprocess, content):
    if content is not None:
        (tmp_path / "m.onnx").write_bytes(content)
    with pytest.raises(ModelError) as caught:
        fold_file(tmp_path / "m.onnx", tmp_path / "folded.onnx", preprocess)
    assert caught.value.key == "model.path"
    assert not (tmp_path / "folded.onnx").exists()
