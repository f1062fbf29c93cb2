"""A large model is opened from the node's shared copy, with the same answers."""

from __future__ import annotations

import numpy as np

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


def test_where_sharing_fails_the_process_opens_its_own(onnx_case, tmp_path, monkeypatch, caplog):
    def refuse(*_):
        raise OSError("no room")

    monkeypatch.setattr(onnx_runtime, "SHARE_ABOVE_BYTES", 0)
    monkeypatch.setattr(onnx_runtime, "make_shareable", refuse)
    batch = onnx_case.batch(2)
    scores = onnx_case.load(share=True).infer(batch).scores
    np.testing.assert_allclose(scores, onnx_case.scores(batch), rtol=1e-4, atol=1e-4)
    assert "no room" in caplog.text
