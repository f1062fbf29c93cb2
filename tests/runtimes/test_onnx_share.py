from __future__ import annotations

import fcntl
import gc
import re
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from sparkinfer.core.errors import ModelError
from sparkinfer.runtimes import _onnx_share
from sparkinfer.runtimes._onnx_share import make_shareable, open_shared, shared_name

ROOT = Path(__file__).parents[2]
BATCH = np.zeros((2, 3, 32, 32), np.float32)


def images():
    return np.random.default_rng(3).normal(size=(3, 3, 32, 32)).astype(np.float32)


def test_the_copy_answers_the_same_and_keeps_the_metadata(tmp_path, save_onnx, logits):
    source = save_onnx(tmp_path / "m.onnx", metadata={"labels": "a\nb"})
    target = tmp_path / shared_name("0" * 64)
    make_shareable(source, target, BATCH)
    session = open_shared(target, ort.SessionOptions())
    original = ort.InferenceSession(source, providers=["CPUExecutionProvider"])
    expected = original.run(None, {"input": images()})
    for one, other in zip(expected, session.run(None, {"input": images()}), strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(session.run(["logits"], {"input": images()})[0], logits(images()), rtol=1e-4, atol=1e-4)
    assert session.get_modelmeta().custom_metadata_map == {"labels": "a\nb"}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["m.onnx", target.name, f"{target.name}.lock"])


def test_the_weights_stay_in_the_file(tmp_path, save_onnx):
    """The graph that is read is small; what ONNX Runtime maps is the rest."""
    model = onnx.load(save_onnx(tmp_path / "m.onnx"))
    matrix = next(tensor for tensor in model.graph.initializer if tensor.name == "matrix")
    wide = np.zeros((4, 5000), np.float32)
    matrix.CopyFrom(onnx.numpy_helper.from_array(wide, "matrix"))
    del model.graph.node[-1:], model.graph.output[:]
    model.graph.output.append(onnx.helper.make_tensor_value_info("product", onnx.TensorProto.FLOAT, ["n", 5000]))
    onnx.save(model, tmp_path / "m.onnx")
    make_shareable(tmp_path / "m.onnx", tmp_path / "m.shared", BATCH)
    assert len(_onnx_share._graph(tmp_path / "m.shared")) < 20_000 < 4 * wide.size
    assert open_shared(tmp_path / "m.shared", ort.SessionOptions()).run(None, {"input": images()})[0].shape == (3, 5000)


def test_a_copy_that_is_there_is_used(tmp_path, monkeypatch):
    target = tmp_path / "m.shared"
    target.write_bytes(b"made before")
    monkeypatch.setattr(_onnx_share, "_save", None)
    make_shareable(tmp_path / "m.onnx", target, BATCH)
    assert target.read_bytes() == b"made before"


def test_of_several_at_once_one_works(tmp_path, save_onnx, monkeypatch):
    source = save_onnx(tmp_path / "m.onnx")
    made = []
    save = _onnx_share._save

    def counted(*given):
        made.append(given)
        return save(*given)

    monkeypatch.setattr(_onnx_share, "_save", counted)
    threads = [threading.Thread(target=make_shareable, args=(source, tmp_path / "m.shared", BATCH)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    open_shared(tmp_path / "m.shared", ort.SessionOptions())


def test_a_copy_that_answers_otherwise_is_not_kept(tmp_path, save_onnx, monkeypatch):
    source = save_onnx(tmp_path / "m.onnx")
    save = _onnx_share._save
    monkeypatch.setattr(_onnx_share, "_save", lambda *given: [array + 0.01 for array in save(*given)])
    with pytest.raises(ModelError, match="answers otherwise"):
        make_shareable(source, tmp_path / "m.shared", BATCH)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "m.shared.lock"]


def test_a_model_that_does_not_open_leaves_nothing(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"not a model")
    with pytest.raises(ModelError, match="cannot open"):
        make_shareable(tmp_path / "m.onnx", tmp_path / "m.shared", BATCH)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "m.shared.lock"]


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 100 + (1 << 40).to_bytes(8, "little") + _onnx_share.MAGIC])
def test_a_file_that_is_no_copy(tmp_path, content):
    (tmp_path / "m.shared").write_bytes(content)
    with pytest.raises(ModelError, match="no shared copy"):
        open_shared(tmp_path / "m.shared", ort.SessionOptions())


def test_a_copy_in_use_is_locked(tmp_path, save_onnx):
    def evictable():
        with target.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    target = tmp_path / "m.shared"
    make_shareable(save_onnx(tmp_path / "m.onnx"), target, BATCH)
    assert evictable()
    session = open_shared(target, ort.SessionOptions())
    assert not evictable()
    del session
    gc.collect()
    assert evictable()


def test_a_copy_that_is_gone(tmp_path):
    with pytest.raises(ModelError, match="cannot be opened"):
        open_shared(tmp_path / "m.shared", ort.SessionOptions())


def test_uint8_models_are_shared_too(tmp_path):
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Cast", ["input"], ["output"], to=onnx.TensorProto.FLOAT)],
        "cast",
        [onnx.helper.make_tensor_value_info("input", onnx.TensorProto.UINT8, ["n", 4, 4, 3])],
        [onnx.helper.make_tensor_value_info("output", onnx.TensorProto.FLOAT, ["n", 4, 4, 3])],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    make_shareable(tmp_path / "m.onnx", tmp_path / "m.shared", np.zeros((2, 4, 4, 3), np.uint8))
    pixels = np.arange(48, dtype=np.uint8).reshape(1, 4, 4, 3)
    session = open_shared(tmp_path / "m.shared", ort.SessionOptions())
    np.testing.assert_array_equal(session.run(None, {"input": pixels})[0], pixels.astype(np.float32))


def test_another_processor_or_version_has_another_copy(monkeypatch):
    here = shared_name("abc")
    assert here == shared_name("abc")
    assert here.startswith("abc-ort")
    monkeypatch.setattr(_onnx_share, "_processor", lambda: "flags: none")
    there = shared_name("abc")
    monkeypatch.setattr(ort, "__version__", "9.9.9")
    assert len({here, there, shared_name("abc")}) == 3


@pytest.mark.slow
@pytest.mark.timeout(900)  # 20 s on a quiet machine
@pytest.mark.parametrize("kind", ["gemm", "conv"])
def test_one_model_per_node(kind):
    """The bound of 1.3 model sizes is for 500 MB; a smaller model is quicker to make, and harder: activations count."""
    command = [sys.executable, "-m", "tests.benchmarks.pss", "--kind", kind]
    command += ["--megabytes", "256", "--workers", "3", "--batch", "1"]
    line = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    shared, each = re.search(r"grows by ([\d.]+) model sizes \(([\d.]+) without", line).groups()
    assert float(shared) < 1.3
    assert float(each) > 2.9
