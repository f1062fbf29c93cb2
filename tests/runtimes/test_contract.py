"""What every runtime promises: the same cases for all four."""

from __future__ import annotations

import gc
import os
import pickle
import weakref

import numpy as np
import pytest

from sparkinfer.core.errors import DeviceError, ModelError
from sparkinfer.core.model_spec import ModelSpec
from sparkinfer.core.protocols import LoadRequest
from sparkinfer.core.registry import create_runtime

CLASSES = 5


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_scores_are_those_of_the_reference(case, rows):
    batch = case.batch(rows)
    outputs = case.load().infer(batch)
    assert outputs.scores.dtype == np.float32
    assert outputs.scores.shape == (rows, CLASSES)
    assert outputs.embedding is None
    np.testing.assert_allclose(outputs.scores, case.scores(batch), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", ["torch", "torchscript"], indirect=True)
@pytest.mark.parametrize(("key", "value"), [("providers", ("cpu",)), ("input", "image")])
def test_keys_that_torch_does_not_know_are_refused(case, key, value):
    with pytest.raises(ModelError) as caught:
        case.load(model={key: value})
    assert (caught.value.key, caught.value.hint is not None) == (f"model.{key}", True)


def test_a_shorter_last_batch_changes_nothing(case):
    batch = case.batch(11)
    runtime = case.load()
    parts = [runtime.infer(np.ascontiguousarray(batch[start : start + 4])).scores for start in (0, 4, 8)]
    assert [len(part) for part in parts] == [4, 4, 3]
    np.testing.assert_allclose(np.concatenate(parts), case.scores(batch), rtol=1e-4, atol=1e-4)


def test_the_same_batch_gives_the_same_bits(case):
    batch = case.batch(3)
    runtime, other = case.load(), case.load()
    first = runtime.infer(batch).scores
    np.testing.assert_array_equal(runtime.infer(batch).scores, first)
    np.testing.assert_array_equal(other.infer(batch).scores, first)


def test_a_row_does_not_feel_its_neighbours(case):
    batch = case.batch(5)
    strange = case.batch(5, seed=1)
    strange[2] = batch[2]
    strange[0] = np.nan
    runtime = case.load()
    alone = runtime.infer(batch[2:3].copy()).scores[0]
    np.testing.assert_allclose(runtime.infer(batch).scores[2], alone, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(runtime.infer(strange).scores[2], alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [2, 5, 8])
def test_in_batches_of_one_size_a_row_gives_the_same_bits_anywhere(case, rows):
    batch, others = case.batch(rows), case.batch(rows, seed=1)
    runtime = case.load(threads=1)
    first = runtime.infer(batch).scores[0]
    for position in range(rows):
        others_now = others.copy()
        others_now[position] = batch[0]
        np.testing.assert_array_equal(runtime.infer(others_now).scores[position], first)


def test_non_finite_input_stays_visible(case):
    batch = case.batch(2)
    batch[1] = np.nan
    scores = case.load().infer(batch).scores
    assert np.isfinite(scores[0]).all()
    assert not np.isfinite(scores[1]).all()


def test_the_batch_is_only_read_and_not_kept(case):
    batch = case.batch(3)
    before = batch.copy()
    batch.setflags(write=False)
    alive = weakref.ref(batch)
    runtime = case.load(embedding=case.embedding_name)
    outputs = runtime.infer(batch)
    np.testing.assert_array_equal(batch, before)
    assert not np.shares_memory(outputs.scores, batch)
    assert not np.shares_memory(outputs.embedding, batch)
    del batch
    gc.collect()
    assert alive() is None


def test_results_survive_the_next_batch(case):
    runtime = case.load(embedding=case.embedding_name)
    first = runtime.infer(case.batch(3))
    scores, embedding = first.scores.copy(), first.embedding.copy()
    runtime.infer(case.batch(3, seed=5))
    np.testing.assert_array_equal(first.scores, scores)
    np.testing.assert_array_equal(first.embedding, embedding)


def test_embedding(case):
    batch = case.batch(3)
    runtime = case.load(embedding=case.embedding_name)
    outputs = runtime.infer(batch)
    expected = case.embedding(batch)
    assert outputs.embedding.dtype == np.float32
    np.testing.assert_allclose(outputs.embedding, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(outputs.scores, case.scores(batch), rtol=1e-4, atol=1e-4)
    info = runtime.signature().embedding
    assert (info.shape, info.dtype) == ((None, expected.shape[1]), "float32")


def test_an_unknown_embedding_is_refused_with_those_there_are(case):
    with pytest.raises(ModelError) as caught:
        case.load(embedding="nowhere")
    assert caught.value.key == "postprocess.embedding"
    assert "nowhere" in caught.value.message
    assert caught.value.allowed


def test_signature(case):
    signature = case.load().signature()
    assert signature.num_classes == CLASSES
    assert signature.scores.shape == (None, CLASSES)
    assert signature.scores.dtype == "float32"
    assert signature.input.shape == (None, 3, 32, 32)
    assert signature.input.dtype == "float32"
    assert signature.embedding is None
    assert signature.labels is None


def test_a_wrong_layout_names_both_sides(case):
    with pytest.raises(ModelError) as caught:
        case.load(preprocess={"layout": "nhwc"})
    assert "float32[?, 3, " in caught.value.message
    assert "32, 32, 3]" in caught.value.message
    assert str(caught.value.key).startswith("preprocess")
    assert "layout" in str(caught.value.hint)


def test_wrong_channels_name_both_sides(case):
    with pytest.raises(ModelError) as caught:
        case.load(preprocess={"channels": "grey"})
    assert "float32[?, 3, " in caught.value.message
    assert "1, 32, 32]" in caught.value.message
    assert str(caught.value.key).startswith("preprocess")


def test_a_wrong_dtype_names_both_sides(case):
    with pytest.raises(ModelError) as caught:
        case.load(preprocess={"dtype": "uint8"})
    assert "float32[" in caught.value.message
    assert "uint8[" in caught.value.message


@pytest.mark.parametrize("damage", ["half", "empty", "garbage", "missing"])
def test_a_damaged_file_is_a_model_error(case, tmp_path, damage):
    whole = case.path.read_bytes()
    path = tmp_path / case.path.name
    content = {"half": whole[: len(whole) // 2], "empty": b"", "garbage": b"\x80\x05no model" * 50}.get(damage)
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        case.load(path=str(path))
    assert caught.value.key == "model.path"
    assert len(caught.value.render().splitlines()) < 24


class Trap:
    """Runs a command when it is unpickled."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (self.marker,)


def test_a_pickle_is_never_run(case, tmp_path):
    marker = tmp_path / "ran"
    path = tmp_path / case.path.name
    path.write_bytes(pickle.dumps(Trap(str(marker))))
    with pytest.raises(ModelError):
        case.load(path=str(path))
    assert not marker.exists()


def test_a_missing_gpu_is_a_device_error(case, device_that_is_nowhere):
    with pytest.raises(DeviceError) as caught:
        case.load(device=device_that_is_nowhere)
    assert "cuda:99" in caught.value.message
    assert caught.value.key == "model.device"


def test_close_can_be_followed_by_another_load(case):
    runtime = case.load()
    runtime.close()
    batch = case.batch(2)
    request = case.request()
    runtime.load(LoadRequest(path=request.path, model=ModelSpec(path="x", arch=case.arch), preprocess=case.preprocess))
    np.testing.assert_allclose(runtime.infer(batch).scores, case.scores(batch), rtol=1e-4, atol=1e-4)


def test_a_new_runtime_per_call(case):
    assert create_runtime(case.format) is not create_runtime(case.format)


@pytest.mark.parametrize("channels", ["rgb", "bgr"])
def test_folded_it_takes_bytes_and_answers_the_same(case, channels, tmp_path):
    spec = case.preprocess.model_copy(update={"channels": channels})
    folding = create_runtime(case.format).fold(str(case.path), str(tmp_path / case.path.name), spec, None)
    if folding is None:
        assert case.format == "fake"
        return
    assert (folding.preprocess.dtype, folding.preprocess.layout, folding.preprocess.channels) == (
        "uint8",
        "nhwc",
        "rgb",
    )
    folded = create_runtime(case.format)
    request = case.request()
    folded.load(LoadRequest(folding.path, request.model, folding.preprocess, inside=folding.inside))
    pixels = np.random.default_rng(3).integers(0, 256, (5, 32, 32, 3), np.uint8)
    ordered = pixels[..., ::-1] if channels == "bgr" else pixels
    mean, std = np.array(spec.mean), np.array(spec.std)
    by_hand = ((ordered / 255 - mean) / std).transpose(0, 3, 1, 2).astype(np.float32)
    np.testing.assert_allclose(folded.infer(pixels).scores, case.scores(by_hand), rtol=1e-4, atol=1e-4)
    assert folded.signature().num_classes == CLASSES
