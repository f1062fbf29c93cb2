"""A large model is opened from the node's shared copy, with the same answers."""

from __future__ import annotations

import numpy as np
import onnxruntime as ort
import pytest

from sparkinfer.core.model_spec import ModelSpec
from sparkinfer.core.protocols import LoadRequest
from sparkinfer.runtimes import onnx_runtime


def test_a_model_above_the_threshold_is_shared_beside_its_file(onnx_case, tmp_path, monkeypatch):
    path = tmp_path / "d1gest.onnx"
    path.write_bytes(onnx_case.path.read_bytes())
    batch = onnx_case.batch(3)
    alone = onnx_case.load(path=str(path), share=True)
    assert [p.name for p in tmp_path.iterdir()] == ["d1gest.onnx"]
    monkeypatch.setattr(onnx_runtime, "SHARE_ABOVE_BYTES", 0)
    shared = [onnx_case.load(path=str(path), share=True) for _ in range(2)]
    assert any(p.suffix == ".shared" for p in tmp_path.iterdir())
    for runtime in shared:
        np.testing.assert_array_equal(runtime.infer(batch).scores, alone.infer(batch).scores)


@pytest.mark.parametrize("rows", [1, 8])
def test_a_model_of_a_fixed_batch_is_shared_too(save_onnx, preprocess, logits, tmp_path, monkeypatch, caplog, rows):
    monkeypatch.setattr(onnx_runtime, "SHARE_ABOVE_BYTES", 0)
    path = str(save_onnx(tmp_path / "m.onnx", batch=rows))
    runtime = onnx_runtime.OnnxRuntime()
    runtime.load(LoadRequest(path, ModelSpec(path=path), preprocess, share=True))
    assert any(p.suffix == ".shared" for p in tmp_path.iterdir())
    assert not caplog.records
    batch = np.random.default_rng(0).normal(size=(3, 3, 32, 32)).astype(np.float32)
    np.testing.assert_allclose(runtime.infer(batch).scores, logits(batch), rtol=1e-4, atol=1e-4)


def test_where_the_shared_copy_does_not_open_the_process_optimises_its_own(onnx_case, monkeypatch, tmp_path, caplog):
    path = tmp_path / "d1gest.onnx"
    path.write_bytes(onnx_case.path.read_bytes())
    monkeypatch.setattr(onnx_runtime, "SHARE_ABOVE_BYTES", 0)
    monkeypatch.setattr(onnx_runtime, "make_shareable", lambda source, target, batch: target.write_bytes(b"junk"))
    options = onnx_case.load(path=str(path), share=True)._session.get_session_options()
    assert "no shared copy" in caplog.text
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    with pytest.raises(RuntimeError, match="external_initializers_file_folder_path"):
        options.get_session_config_entry("session.model_external_initializers_file_folder_path")


def test_where_sharing_fails_the_process_opens_its_own(onnx_case, tmp_path, monkeypatch, caplog):
    def refuse(*_):
        raise OSError("no room")

    monkeypatch.setattr(onnx_runtime, "SHARE_ABOVE_BYTES", 0)
    monkeypatch.setattr(onnx_runtime, "make_shareable", refuse)
    batch = onnx_case.batch(2)
    scores = onnx_case.load(share=True).infer(batch).scores
    np.testing.assert_allclose(scores, onnx_case.scores(batch), rtol=1e-4, atol=1e-4)
    assert "no room" in caplog.text
