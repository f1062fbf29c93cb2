from __future__ import annotations

import json

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from sparkinfer.core.errors import ModelError, OutOfDeviceMemoryError
from sparkinfer.core.model_spec import ModelSpec
from sparkinfer.core.protocols import Device, LoadRequest
from sparkinfer.runtimes import onnx_runtime
from sparkinfer.runtimes._onnx_labels import find_labels
from sparkinfer.runtimes.onnx_runtime import OnnxRuntime


@pytest.fixture
def load(preprocess):
    def load(path, embedding=None, changes=None, **model):
        runtime = OnnxRuntime()
        spec = preprocess.model_copy(update=changes or {})
        runtime.load(LoadRequest(str(path), ModelSpec(path=str(path), **model), spec, embedding))
        return runtime

    return load


def images(rows, dtype=np.float32):
    return np.random.default_rng(rows).normal(size=(rows, 3, 32, 32)).astype(dtype)


@pytest.mark.parametrize("fixed", [1, 4])
@pytest.mark.parametrize("rows", [1, 3, 4, 9])
def test_a_fixed_batch_dimension(load, save_onnx, logits, features, tmp_path, fixed, rows):
    runtime = load(save_onnx(tmp_path / "m.onnx", batch=fixed), embedding="pooled")
    batch = images(rows)
    outputs = runtime.infer(batch)
    np.testing.assert_allclose(outputs.scores, logits(batch), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(outputs.embedding, features(batch), rtol=1e-4, atol=1e-4)
    signature = runtime.signature()
    assert signature.scores.shape == (fixed, 5)
    assert signature.input.shape == (fixed, 3, 32, 32)
    assert signature.num_classes == 5


def test_half_precision_in_and_out(load, save_onnx, logits, tmp_path):
    path = save_onnx(tmp_path / "m.onnx", dtype=TensorProto.FLOAT16)
    with pytest.raises(ModelError) as caught:
        load(path)
    assert (caught.value.key, caught.value.hint) == ("preprocess.dtype", "set preprocess.dtype: float16")
    runtime = load(path, changes={"dtype": "float16"})
    batch = images(3, np.float16)
    scores = runtime.infer(batch).scores
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, logits(batch), rtol=2e-2, atol=2e-2)
    assert runtime.signature().scores.dtype == "float16"


def test_open_height_and_width(load, save_onnx, logits, tmp_path):
    runtime = load(save_onnx(tmp_path / "m.onnx", shape=(3, "h", "w")))
    assert runtime.signature().input.shape == (None, 3, None, None)
    np.testing.assert_allclose(runtime.infer(images(2)).scores, logits(images(2)), rtol=1e-4, atol=1e-4)


def test_the_first_two_dimensional_output_is_the_scores(load, save_onnx, tmp_path):
    path = save_onnx(tmp_path / "m.onnx")
    assert load(path).signature().scores.name == "logits"
    assert load(path, output="pooled").signature().scores.name == "pooled"


def test_one_by_one_maps_are_scores(load, save_onnx, features, tmp_path):
    runtime = load(save_onnx(tmp_path / "m.onnx", flatten=False))
    assert runtime.signature().num_classes == 4
    np.testing.assert_allclose(runtime.infer(images(2)).scores, features(images(2)), rtol=1e-4, atol=1e-4)


def test_an_output_of_another_shape_is_refused(load, save_onnx, tmp_path):
    path = save_onnx(tmp_path / "m.onnx")
    model = onnx.load(path)
    model.graph.output.append(helper.make_tensor_value_info("active", TensorProto.FLOAT, None))
    onnx.save(model, path)
    with pytest.raises(ModelError, match=r"output active gives float32\[2, 4, 15, 15\] for 2 images"):
        load(path, output="active").signature()


@pytest.mark.parametrize(
    ("wrong", "key", "allowed"),
    [
        ({"input": "image"}, "model.input", ("input",)),
        ({"output": "probs"}, "model.output", ("pooled", "logits")),
        ({"embedding": "probs"}, "postprocess.embedding", ("pooled", "logits")),
    ],
)
def test_unknown_names_list_the_known_ones(load, save_onnx, tmp_path, wrong, key, allowed):
    with pytest.raises(ModelError) as caught:
        load(save_onnx(tmp_path / "m.onnx"), **wrong)
    assert (caught.value.key, caught.value.allowed) == (key, allowed)


def test_several_inputs(load, save_onnx, tmp_path):
    path = save_onnx(tmp_path / "m.onnx", second_input=True)
    with pytest.raises(ModelError) as caught:
        load(path)
    assert (caught.value.key, caught.value.allowed) == ("model.input", ("input", "mask"))
    with pytest.raises(ModelError, match=r"mask: float32\[\?, 1\]"):
        load(path, input="input")


@pytest.mark.parametrize(("shape", "crop"), [((3, 224, 224), "224"), ((3, 30, 40), "[30, 40]")])
def test_a_shorter_side_alone_is_no_fixed_size(load, save_onnx, tmp_path, shape, crop):
    """Every picture that is not square would fail by itself."""
    path = save_onnx(tmp_path / "m.onnx", shape=shape)
    with pytest.raises(ModelError) as caught:
        load(path, changes={"resize": shape[1], "crop": None})
    assert (caught.value.key, caught.value.hint) == ("preprocess.crop", f"set preprocess.crop: {crop}")
    load(path, changes={"resize": None, "crop": None})  # pictures as they are, which are said to have the size
    load(path, changes={"resize": shape[1:], "crop": None})


@pytest.mark.parametrize(
    ("shape", "changes", "key", "hint"),
    [
        ((3, 224, 224), {}, "preprocess.crop", "set preprocess.crop: 224"),
        ((3, 30, 40), {}, "preprocess.crop", "set preprocess.crop: [30, 40]"),
        ((32, 32, 3), {}, "preprocess.layout", "set preprocess.layout: nhwc"),
        ((3, 32, 32), {"layout": "nhwc"}, "preprocess.layout", "set preprocess.layout: nchw"),
        ((1, 32, 32), {}, "preprocess.channels", "set preprocess.channels: grey"),
        ((3, 32), {}, "model.path", "four dimensions"),
    ],
)
def test_a_misfit_names_both_sides_and_the_key(load, save_onnx, tmp_path, shape, changes, key, hint):
    path = save_onnx(tmp_path / "m.onnx")
    model = onnx.load(path)
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("input", TensorProto.FLOAT, ["n", *shape]))
    del model.graph.node[:], model.graph.output[:], model.graph.initializer[:]
    model.graph.node.append(helper.make_node("Flatten", ["input"], ["logits"]))
    model.graph.output.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", "k"]))
    onnx.save(model, path)
    with pytest.raises(ModelError) as caught:
        load(path, changes=changes)
    assert f"the model wants input: float32[?, {', '.join(map(str, shape))}]" in caught.value.message
    given = "float32[?, 32, 32, 3] (layout nhwc" if changes else "float32[?, 3, 32, 32] (layout nchw"
    assert f"the spec's preprocess gives {given}" in caught.value.message
    assert caught.value.key == key
    assert hint in str(caught.value.hint)


def test_weights_beside_the_model_get_a_hint(load, save_onnx, tmp_path):
    path = save_onnx(tmp_path / "m.onnx")
    onnx.save_model(onnx.load(path), path, save_as_external_data=True, location="m.data", size_threshold=0)
    alone = tmp_path / "elsewhere"
    alone.mkdir()
    (alone / "m.onnx").write_bytes(path.read_bytes())
    with pytest.raises(ModelError) as caught:
        load(alone / "m.onnx")
    assert "one file" in str(caught.value.hint)


def test_precision_belongs_to_torch(load, save_onnx, tmp_path):
    with pytest.raises(ModelError) as caught:
        load(save_onnx(tmp_path / "m.onnx"), precision="fp16")
    assert caught.value.key == "model.precision"


def test_threads_and_options_reach_the_session(save_onnx, preprocess, tmp_path):
    path = str(save_onnx(tmp_path / "m.onnx"))
    runtime = OnnxRuntime()
    options = {"session": {"session.intra_op.allow_spinning": 0}, "gpu_mem_limit": 1 << 30}
    runtime.load(LoadRequest(path, ModelSpec(path=path, options=options), preprocess, threads=3))
    session_options = runtime._session.get_session_options()
    assert session_options.intra_op_num_threads == 3
    assert session_options.inter_op_num_threads == 1
    assert session_options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert runtime._session.get_providers() == ["CPUExecutionProvider"]


def test_the_gpu_provider_is_bounded_and_takes_options(preprocess):
    model = ModelSpec(path="m.onnx", options={"gpu_mem_limit": 1 << 30})
    (provider, options), fallback = onnx_runtime._providers(
        LoadRequest("m", model, preprocess, device=Device("cuda", 2))
    )
    assert (provider, fallback) == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert options == {"device_id": 2, "arena_extend_strategy": "kSameAsRequested", "gpu_mem_limit": 1 << 30}


class _Failing:
    def __init__(self, message):
        self.message = message

    def run(self, *_):
        raise onnxruntime.capi.onnxruntime_pybind11_state.Fail(self.message)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer of size 64",
            OutOfDeviceMemoryError,
        ),
        ("CUDA failure 2: out of memory ; GPU=0", OutOfDeviceMemoryError),
        ("CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED", OutOfDeviceMemoryError),
        ("std::bad_alloc", OutOfDeviceMemoryError),
        ("Non-zero status code returned while running Reshape", onnxruntime.capi.onnxruntime_pybind11_state.Fail),
    ],
)
def test_memory_errors_are_told_apart(load, save_onnx, tmp_path, message, expected):
    runtime = load(save_onnx(tmp_path / "m.onnx"))
    runtime._session = _Failing(message)
    with pytest.raises(expected):
        runtime.infer(images(1))


def test_a_real_allocation_failure_is_out_of_memory(load, tmp_path):
    # A graph that asks for 2**50 bytes, which no machine has.
    nodes = [
        helper.make_node(
            "ConstantOfShape", ["size"], ["huge"], value=helper.make_tensor("v", TensorProto.FLOAT, [1], [0])
        ),
        helper.make_node("ReduceSum", ["huge"], ["sum"], keepdims=0),
        helper.make_node("Flatten", ["input"], ["flat"]),
        helper.make_node("Add", ["flat", "sum"], ["logits"]),
        helper.make_node("ReduceMax", ["input"], ["peak"], keepdims=0),
        helper.make_node("Cast", ["peak"], ["peak_int"], to=TensorProto.INT64),
        helper.make_node("Unsqueeze", ["peak_int", "axis"], ["size"]),
    ]
    nodes = nodes[4:] + nodes[:4]
    graph = helper.make_graph(
        nodes,
        "huge",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["n", 3, 32, 32])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 3072])],
        [helper.make_tensor("axis", TensorProto.INT64, [1], [0])],
    )
    path = tmp_path / "huge.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    runtime = load(path)
    assert runtime.infer(np.ones((1, 3, 32, 32), np.float32)).scores.shape == (1, 3072)
    with pytest.raises(OutOfDeviceMemoryError):
        runtime.infer(np.full((1, 3, 32, 32), 2.0**48, np.float32))


def test_labels_come_from_the_metadata(load, save_onnx, tmp_path):
    path = save_onnx(tmp_path / "m.onnx", metadata={"names": "{0: 'a', 1: 'b', 2: \"c's\", 3: 'd', 4: 'é'}"})
    assert load(path).signature().labels == ("a", "b", "c's", "d", "é")


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, None),
        ({"labels": ""}, None),
        ({"labels": json.dumps(["cat", "dog"])}, ("cat", "dog")),
        ({"classes": "['cat', 'dog']"}, ("cat", "dog")),
        ({"names": json.dumps({"1": "dog", "0": "cat"})}, ("cat", "dog")),
        ({"id2label": json.dumps({str(i): f"c{i}" for i in range(11)})}, tuple(f"c{i}" for i in range(11))),
        ({"labels": json.dumps({"dog": 1, "cat": 0})}, ("cat", "dog")),
        ({"names": "{1: 'dog', 0: 'cat'}"}, ("cat", "dog")),
        ({"labels": "cat\ndog\r\nbig bird\n"}, ("cat", "dog", "big bird")),
        ({"names": "resnet"}, None),
        ({"labels": "{0: 'cat', 2: 'dog'}"}, None),
        ({"labels": "{'cat': 'x'}"}, None),
        ({"labels": "[__import__('os')]"}, None),
        ({"labels": "[" * 10_000}, None),
        ({"labels": "", "classes": '["cat"]'}, ("cat",)),
        ({"author": '["cat"]'}, None),
    ],
)
def test_label_notations(metadata, expected):
    assert find_labels(metadata) == expected
