"""What travels: one file, whole and folded, whatever the model came as."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from sparkinfer.driver.model import model

SIDE = 8


@pytest.fixture
def split_model(tmp_path: Path) -> Path:
    """Mean of each channel times a matrix; the matrix lies in a file beside the model."""
    matrix = np.arange(3 * 400, dtype=np.float32).reshape(3, 400)
    graph = helper.make_graph(
        [
            helper.make_node("GlobalAveragePool", ["image"], ["pooled"]),
            helper.make_node("Flatten", ["pooled"], ["flat"]),
            helper.make_node("MatMul", ["flat", "matrix"], ["scores"]),
        ],
        "split",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 400])],
        [numpy_helper.from_array(matrix, "matrix")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "split.onnx"
    onnx.save(made, path, save_as_external_data=True, location="split.onnx.data", size_threshold=0)
    assert (tmp_path / "split.onnx.data").exists()
    return path


@pytest.mark.parametrize("fold", [True, False])
def test_weights_in_a_second_file_travel_with_the_model(split_model: Path, tmp_path: Path, fold: bool) -> None:
    spec = {"preset": "none", "crop": SIDE}
    found = model(split_model, preprocess=spec, fold=fold).inspected
    alone = tmp_path / "elsewhere"
    alone.mkdir()
    (alone / "m.onnx").write_bytes(found.path.read_bytes())
    session = ort.InferenceSession(alone / "m.onnx", providers=["CPUExecutionProvider"])
    assert found.preprocess.dtype == ("uint8" if fold else "float32")
    pixels = np.full((1, SIDE, SIDE, 3), 255, np.uint8)
    image = pixels if fold else np.ones((1, 3, SIDE, SIDE), np.float32)
    (scores,) = session.run(None, {"image": image})
    assert scores[0, :2].tolist() == [0 + 400 + 800, 1 + 401 + 801]


def test_other_weights_beside_the_same_graph_are_another_model(split_model: Path) -> None:
    first = model(split_model, preprocess={"preset": "none", "crop": SIDE}).inspected
    data = split_model.with_name("split.onnx.data")
    data.write_bytes(bytes(len(data.read_bytes())))
    second = model(split_model, preprocess={"preset": "none", "crop": SIDE}).inspected
    assert first.digest != second.digest
