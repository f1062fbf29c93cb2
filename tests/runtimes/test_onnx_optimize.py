from __future__ import annotations

import hashlib
import json

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from sparkinfer.core.errors import ModelError
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.runtimes import onnx_optimize
from sparkinfer.runtimes._onnx_file import stored_preprocess
from sparkinfer.runtimes.onnx_optimize import Quantizer, finish, fitting_spec, optimize_graph, to_float16

SIDE = 16
CLASSES = 7
RNG = np.random.default_rng(5)
# Five layers with weights. The fourth convolution's channels differ in scale by a factor of 1000, as those of depthwise
# layers do: one range for all of its weights would lose the small ones.
SHAPES = {"c1": (8, 3, 3, 3), "c2": (8, 8, 3, 3), "c3": (8, 8, 1, 1), "c4": (8, 8, 3, 3), "fc": (CLASSES, 8)}
WEIGHTS = {name: RNG.normal(0, 0.3, shape).astype(np.float32) for name, shape in SHAPES.items()}
WEIGHTS["c4"] *= np.geomspace(0.01, 10, 8, dtype=np.float32).reshape(8, 1, 1, 1)
SCALE = RNG.uniform(0.5, 2, 8).astype(np.float32)
SHIFT = RNG.normal(0, 0.2, 8).astype(np.float32)
VARIANCE = RNG.uniform(0.5, 2, 8).astype(np.float32)
CLIP = 3.0


def network(metadata=None, batch="batch"):
    """Conv, batch normalisation, clip; conv, relu; conv; conv, relu, means, linear. A constant sum to be folded."""
    weights = {**WEIGHTS, "scale": SCALE, "shift": SHIFT, "mean": SHIFT, "variance": VARIANCE}
    weights |= {
        name: np.array(value, np.float32) for name, value in {"low": 0, "high": CLIP, "one": 1, "two": 1}.items()
    }
    node = helper.make_node
    nodes = [
        node("Conv", ["input", "c1"], ["a"], name="c1", pads=[1] * 4, strides=[2, 2]),
        node("BatchNormalization", ["a", "scale", "shift", "mean", "variance"], ["b"], epsilon=1e-5),
        node("Clip", ["b", "low", "high"], ["c"]),
        node("Conv", ["c", "c2"], ["d"], name="c2", pads=[1] * 4),
        node("Relu", ["d"], ["e"]),
        node("Conv", ["e", "c3"], ["f"], name="c3"),
        node("Conv", ["f", "c4"], ["g"], name="c4", pads=[1] * 4),
        node("Relu", ["g"], ["h"]),
        node("GlobalAveragePool", ["h"], ["i"]),
        node("Flatten", ["i"], ["j"]),
        node("Gemm", ["j", "fc"], ["k"], name="fc", transB=1),
        node("Add", ["one", "two"], ["sum"]),
        node("Mul", ["k", "sum"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, [batch, 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [batch, CLASSES])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, metadata or {})
    return model


def convolve(maps, kernel, stride=1):
    pad = kernel.shape[2] // 2
    maps = np.pad(maps, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    windows = np.lib.stride_tricks.sliding_window_view(maps, kernel.shape[2:], axis=(2, 3))[:, :, ::stride, ::stride]
    return np.einsum("nchwij,fcij->nfhw", windows, kernel.astype(np.float64))


def expected(images):
    """The network in float64 numpy."""
    per_channel = (slice(None), None, None)
    maps = convolve(images.astype(np.float64), WEIGHTS["c1"], 2)
    deviation = np.sqrt(VARIANCE.astype(np.float64) + 1e-5)
    maps = (maps - SHIFT[per_channel]) / deviation[per_channel] * SCALE[per_channel] + SHIFT[per_channel]
    maps = np.maximum(convolve(np.clip(maps, 0, CLIP), WEIGHTS["c2"]), 0)
    maps = np.maximum(convolve(convolve(maps, WEIGHTS["c3"]), WEIGHTS["c4"]), 0)
    return 2 * maps.mean(axis=(2, 3)) @ WEIGHTS["fc"].astype(np.float64).T


def images(rows=6, seed=1):
    return np.random.default_rng(seed).normal(size=(rows, 3, SIDE, SIDE)).astype(np.float32)


def run(path, batch=None):
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run(None, {"input": images() if batch is None else batch})[0]


@pytest.fixture
def source(tmp_path):
    onnx.save(network(), tmp_path / "source.onnx")
    return tmp_path / "source.onnx"


@pytest.fixture
def plain(source, tmp_path):
    optimize_graph(source, tmp_path / "plain.onnx")
    return tmp_path / "plain.onnx"


def test_batch_normalisation_and_constants_are_folded(source, tmp_path):
    counts = optimize_graph(source, tmp_path / "out.onnx")
    model = onnx.load(tmp_path / "out.onnx")
    kinds = [node.op_type for node in model.graph.node]
    assert "BatchNormalization" not in kinds
    assert "Add" not in kinds
    assert (counts.before, counts.after) == (13, len(kinds)) == (13, 11)
    assert counts.running < counts.after  # convolution and activation are one kernel on a CPU
    assert [entry.domain for entry in model.opset_import] == [""]
    assert all(node.name for node in model.graph.node)
    np.testing.assert_allclose(run(tmp_path / "out.onnx"), expected(images()), rtol=1e-4, atol=1e-4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.onnx", "source.onnx"]


def test_external_weights_come_inside(tmp_path):
    onnx.save(network(), tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    optimize_graph(tmp_path / "m.onnx", tmp_path / "out.onnx")
    (tmp_path / "m.data").unlink()
    np.testing.assert_allclose(run(tmp_path / "out.onnx"), expected(images()), rtol=1e-4, atol=1e-4)


def test_a_model_too_large_for_one_file(source, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_optimize, "LARGEST_BYTES", 1000)
    with pytest.raises(ModelError, match="up to 1000 can be optimised"):
        optimize_graph(source, tmp_path / "out.onnx")


def test_a_damaged_model(tmp_path):
    model = network()
    model.graph.node[0].op_type = "Konv"
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="cannot open"):
        optimize_graph(tmp_path / "m.onnx", tmp_path / "out.onnx")


def test_half_precision_halves_the_weights_and_keeps_the_ends(plain, tmp_path):
    assert not to_float16(plain, tmp_path / "half.onnx")
    model = onnx.load(tmp_path / "half.onnx")
    kinds = {tensor.data_type for tensor in model.graph.initializer if len(tensor.dims) > 1}
    assert kinds == {TensorProto.FLOAT16}
    assert model.graph.input[0].type.tensor_type.elem_type == TensorProto.FLOAT
    assert model.graph.output[0].type.tensor_type.elem_type == TensorProto.FLOAT
    np.testing.assert_allclose(run(tmp_path / "half.onnx"), expected(images()), rtol=2e-2, atol=2e-2)
    with pytest.raises(ModelError, match="no float32 weights"):
        to_float16(tmp_path / "half.onnx", tmp_path / "again.onnx")


def test_half_precision_knows_what_crashes_on_a_cpu(tmp_path):
    """Transpose, then MatMul: opened with care, it answers; without, ONNX Runtime 1.31 ends the process."""
    graph = helper.make_graph(
        [
            helper.make_node("Transpose", ["input"], ["turned"], perm=[0, 2, 1]),
            helper.make_node("MatMul", ["turned", "weights"], ["output"]),
        ],
        "attention",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, ["n", 3, "m"])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["n", "m", 2])],
        [numpy_helper.from_array(np.ones((3, 2), np.float32), "weights")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    assert to_float16(tmp_path / "m.onnx", tmp_path / "half.onnx")
    options = ort.SessionOptions()
    options.add_session_config_entry("optimization.disable_specified_optimizers", "NchwcTransformer")
    session = ort.InferenceSession(tmp_path / "half.onnx", options, providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"input": np.ones((1, 3, 1), np.float32)})[0], [[[3, 3]]])


@pytest.fixture
def quantizer(plain, tmp_path):
    (tmp_path / "work").mkdir()
    return Quantizer(plain, images(20, seed=2), tmp_path / "work")


def relative_error(path, batch=None):
    batch = images() if batch is None else batch
    truth = expected(batch)
    return float(np.abs(run(path, batch) - truth).mean() / np.abs(truth).mean())


def test_layers_with_weights_in_graph_order(quantizer):
    assert quantizer.layers == ("c1", "c2", "c3", "c4", "fc")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"calibration": "entropy"},
        {"calibration": "percentile"},
        {"activations": "int8"},
        {"reduce_range": True},
        {"layers_only": True},
    ],
    ids=str,
)
def test_int8_is_static_per_channel_and_close(quantizer, tmp_path, settings):
    quantizer.quantize(tmp_path / "q.onnx", **settings)
    graph = onnx.load(tmp_path / "q.onnx").graph
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    producers = {output: node for node in graph.node for output in node.output}
    for node in graph.node:
        if node.op_type == "Conv":
            weights = producers[node.input[1]]
            assert weights.op_type == "DequantizeLinear"
            assert values[weights.input[0]].dtype == np.int8
            assert values[weights.input[1]].shape == (8,)
            assert abs(values[weights.input[0]]).max() <= (64 if settings.get("reduce_range") else 127)
    images_in = next(node for node in graph.node if node.op_type == "QuantizeLinear" and node.input[0] == "input")
    assert values[images_in.input[2]].dtype == (np.int8 if settings.get("activations") == "int8" else np.uint8)
    assert relative_error(tmp_path / "q.onnx") < 0.1


def float_weights_when_running(path, folder):
    """Shapes of the float32 weights once ONNX Runtime has opened the file."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(folder / "running.onnx")
    ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    graph = onnx.load(folder / "running.onnx").graph
    return {tuple(t.dims) for t in graph.initializer if t.data_type == TensorProto.FLOAT and len(t.dims) > 1}


@pytest.mark.parametrize("layer", ["c1", "c2", "c3", "c4", "fc"])
def test_a_layer_left_out_stays_in_float_when_the_file_is_opened(quantizer, tmp_path, layer):
    quantizer.quantize(tmp_path / "q.onnx", exclude=[layer])
    assert WEIGHTS[layer].shape in float_weights_when_running(tmp_path / "q.onnx", tmp_path)


def test_leaving_the_worst_layer_out_helps(quantizer, tmp_path):
    quantizer.quantize(tmp_path / "all.onnx")
    alone = {}
    for layer in quantizer.layers:
        quantizer.quantize_alone(tmp_path / "one.onnx", layer, calibration="minmax")
        alone[layer] = relative_error(tmp_path / "one.onnx")
        kinds = [node.op_type for node in onnx.load(tmp_path / "one.onnx").graph.node]
        assert kinds.count("QuantizeLinear") in {1, 2}
    worst = sorted(alone, key=lambda layer: -alone[layer])[:2]
    quantizer.quantize(tmp_path / "without.onnx", exclude=worst)
    assert relative_error(tmp_path / "without.onnx") < relative_error(tmp_path / "all.onnx")


def test_images_are_calibrated_on_once_per_method(quantizer, tmp_path, monkeypatch):
    quantizer.quantize(tmp_path / "q.onnx")
    monkeypatch.setattr(quantizer._reader, "get_next", None)
    quantizer.quantize(tmp_path / "q.onnx", exclude=["c2"])


def test_a_fixed_batch_is_filled_up(tmp_path):
    onnx.save(network(batch=4), tmp_path / "m.onnx")
    optimize_graph(tmp_path / "m.onnx", tmp_path / "plain.onnx")
    Quantizer(tmp_path / "plain.onnx", images(6), tmp_path).quantize(tmp_path / "q.onnx")
    assert relative_error(tmp_path / "q.onnx", images(4)) < 0.1


def test_what_is_quantised_already_is_refused(quantizer, tmp_path):
    quantizer.quantize(tmp_path / "q.onnx")
    with pytest.raises(ModelError, match="quantised already"):
        optimize_graph(tmp_path / "q.onnx", tmp_path / "out.onnx")


def test_int8_needs_float32_in(tmp_path, save_onnx):
    half = save_onnx(tmp_path / "half.onnx", dtype=TensorProto.FLOAT16)
    with pytest.raises(ModelError, match="starts from a model that takes float32"):
        Quantizer(half, images(), tmp_path)


SPEC = PreprocessSpec(resize=None, crop=SIDE)


def done(plain, target, source, **changes):
    given = {"spec": SPEC, "input_name": None, "fold": True, "labels": None, "how": {"form": "int8"}}
    return finish(plain, target, source=source, **{**given, **changes})


@pytest.mark.parametrize("fold", [True, False])
def test_the_finished_file_says_how_to_feed_it(plain, source, tmp_path, fold):
    spec = done(plain, tmp_path / "out.onnx", source, fold=fold)
    metadata = {entry.key: entry.value for entry in onnx.load(tmp_path / "out.onnx").metadata_props}
    assert stored_preprocess(metadata) == spec
    assert (spec.dtype, spec.layout) == (("uint8", "nhwc") if fold else ("float32", "nchw"))
    assert ("sparkinfer.folded" in metadata) == fold
    assert metadata["sparkinfer.source_digest"] == hashlib.sha256(source.read_bytes()).hexdigest()
    assert json.loads(metadata["sparkinfer.optimized"]) == {"form": "int8"}
    pixels = np.random.default_rng(0).integers(0, 256, (2, SIDE, SIDE, 3), np.uint8)
    given = ((pixels / 255 - SPEC.mean) / SPEC.std).transpose(0, 3, 1, 2)
    found = run(tmp_path / "out.onnx", pixels if fold else given.astype(np.float32))
    np.testing.assert_allclose(found, expected(given), rtol=1e-4, atol=1e-4)


def test_labels_of_the_source_stay_unless_others_are_given(tmp_path):
    source, plain = tmp_path / "s.onnx", tmp_path / "plain.onnx"
    onnx.save(network({"labels": "x\ny", "author": "me"}), source)
    optimize_graph(source, plain)
    done(plain, tmp_path / "kept.onnx", source)
    kept = {entry.key: entry.value for entry in onnx.load(tmp_path / "kept.onnx").metadata_props}
    assert (kept["labels"], kept["author"]) == ("x\ny", "me")
    done(plain, tmp_path / "new.onnx", source, labels=["a", "b"])
    new = {entry.key: entry.value for entry in onnx.load(tmp_path / "new.onnx").metadata_props}
    assert (json.loads(new["labels"]), new["author"]) == (["a", "b"], "me")


def test_a_folded_model_says_for_itself_what_it_takes(plain, source, tmp_path):
    spec = done(plain, tmp_path / "out.onnx", source)
    assert fitting_spec(tmp_path / "out.onnx", None, None) == spec
    assert fitting_spec(tmp_path / "out.onnx", SPEC, None) == SPEC.model_copy(
        update={"dtype": "uint8", "layout": "nhwc"}
    )
    assert fitting_spec(source, None, None) == PreprocessSpec()
    assert fitting_spec(source, SPEC, None) == SPEC


def test_optimising_a_folded_model_again_changes_nothing(plain, source, tmp_path):
    spec = done(plain, tmp_path / "once.onnx", source)
    optimize_graph(tmp_path / "once.onnx", tmp_path / "again.onnx")
    assert done(tmp_path / "again.onnx", tmp_path / "twice.onnx", tmp_path / "once.onnx", spec=spec) == spec
    pixels = np.random.default_rng(0).integers(0, 256, (2, SIDE, SIDE, 3), np.uint8)
    np.testing.assert_allclose(run(tmp_path / "twice.onnx", pixels), run(tmp_path / "once.onnx", pixels), rtol=1e-5)


def test_what_prepares_the_image_stays_in_float(plain, tmp_path):
    model = onnx.load(plain)
    model.graph.node[0].input[0] = "prepared"
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0.5).reshape(1), "half"))
    model.graph.node.insert(0, helper.make_node("Mul", ["input", "half"], ["prepared"], name="prepare"))
    onnx.save(model, tmp_path / "m.onnx")
    Quantizer(tmp_path / "m.onnx", images(20), tmp_path).quantize(tmp_path / "q.onnx")
    graph = onnx.load(tmp_path / "q.onnx").graph
    (prepare,) = [node for node in graph.node if node.name == "prepare"]
    assert prepare.input[0] == "input"
    (takes,) = [node for node in graph.node if prepare.output[0] in node.input]
    assert takes.op_type == "QuantizeLinear"
