from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from sparkinfer.core.errors import ErrorCode, ModelError, OutOfDeviceMemoryError, RowError
from sparkinfer.core.model_spec import ModelSpec
from sparkinfer.core.protocols import LoadRequest
from sparkinfer.runtimes.torchscript import TorchScriptRuntime
from tests.runtimes.conftest import SIDE, TinyNet, save_torchscript

EXAMPLE = torch.zeros(2, 3, SIDE, SIDE)


@pytest.fixture
def load(preprocess):
    def load(path, embedding=None, threads=1, **model):
        runtime = TorchScriptRuntime()
        runtime.load(LoadRequest(str(path), ModelSpec(path=str(path), **model), preprocess, embedding, threads=threads))
        return runtime

    return load


@pytest.fixture(scope="session")
def batch():
    return np.random.default_rng(3).normal(size=(3, 3, SIDE, SIDE)).astype(np.float32)


def test_a_plain_tensor(load, weights, logits, batch, tmp_path):
    runtime = load(save_torchscript(TinyNet(weights), EXAMPLE, tmp_path / "m.pt"))
    np.testing.assert_allclose(runtime.infer(batch).scores, logits(batch), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("output", "wanted", "embedding"), [("tuple", "0", "1"), ("dict", "logits", "pooled")])
def test_named_outputs(load, weights, logits, features, batch, tmp_path, output, wanted, embedding):
    runtime = load(save_torchscript(TinyNet(weights, output), EXAMPLE, tmp_path / "m.pt"), embedding, output=wanted)
    outputs = runtime.infer(batch)
    np.testing.assert_allclose(outputs.scores, logits(batch), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(outputs.embedding, features(batch), rtol=1e-4, atol=1e-4)
    assert runtime.signature().scores.name == wanted


def test_the_first_of_a_dict_is_the_scores(load, weights, features, batch, tmp_path):
    runtime = load(save_torchscript(TinyNet(weights, "dict"), EXAMPLE, tmp_path / "m.pt"))
    np.testing.assert_allclose(runtime.infer(batch).scores, features(batch), rtol=1e-4, atol=1e-4)


def test_an_unknown_output_lists_those_there_are(load, weights, tmp_path):
    path = save_torchscript(TinyNet(weights, "dict"), EXAMPLE, tmp_path / "m.pt")
    with pytest.raises(ModelError) as caught:
        load(path, output="probs")
    assert (caught.value.key, caught.value.allowed) == ("model.output", ("pooled", "logits"))


class InPlace(torch.nn.Module):
    def forward(self, x):
        return x.sub_(1.0).flatten(1)


def test_a_model_that_works_in_place_leaves_the_batch_alone(load, batch, tmp_path):
    runtime = load(save_torchscript(InPlace(), EXAMPLE, tmp_path / "m.pt"))
    before = batch.copy()
    np.testing.assert_array_equal(runtime.infer(batch).scores, before.reshape(3, -1) - 1)
    np.testing.assert_array_equal(batch, before)


class Maps(torch.nn.Module):
    def forward(self, x):
        return x[:, :, ::2]


def test_maps_are_no_scores(load, tmp_path):
    path = save_torchscript(Maps(), EXAMPLE, tmp_path / "m.pt")
    with pytest.raises(ModelError) as caught:
        load(path)
    assert caught.value.key == "model.output"
    assert "[2, 3, 16, 32]" in caught.value.message


def test_a_checkpoint_is_refused_with_a_hint(load, weights, tmp_path):
    torch.save(TinyNet(weights).state_dict(), tmp_path / "m.pt")
    with pytest.raises(ModelError) as caught:
        load(tmp_path / "m.pt")
    assert "model.arch" in str(caught.value.hint)
    assert "checkpoint" in str(caught.value.hint)


def test_a_damaged_archive_says_so(load, weights, tmp_path):
    path = save_torchscript(TinyNet(weights), EXAMPLE, tmp_path / "m.pt")
    content = bytearray(path.read_bytes())
    place = content.index(b"PK\x03\x04")
    content[place + 30 : place + 2000] = bytes(1970)
    path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        load(path)
    assert caught.value.key == "model.path"


@pytest.mark.parametrize(("precision", "tolerance"), [("fp16", 5e-3), ("bf16", 5e-2)])
def test_precision_is_used_where_asked(load, weights, logits, batch, tmp_path, precision, tolerance):
    path = save_torchscript(TinyNet(weights), EXAMPLE, tmp_path / "m.pt")
    scores = load(path, precision=precision).infer(batch).scores
    assert scores.dtype == np.float32
    error = np.abs(scores - logits(batch)).max()
    assert 1e-5 < error < tolerance


def test_options_are_refused(load, torchscript_case):
    with pytest.raises(ModelError) as caught:
        load(torchscript_case.path, options={"speed": 11})
    assert caught.value.key == "model.options"


def test_threads(load, torchscript_case):
    before = torch.get_num_threads()
    load(torchscript_case.path, threads=2)
    assert torch.get_num_threads() == 2
    load(torchscript_case.path)
    assert torch.get_num_threads() == 1
    torch.set_num_threads(before)


class Greedy(torch.nn.Module):
    def forward(self, x):
        return x.flatten(1) + torch.zeros(int(x.max()) * int(x.max())).sum()


def test_a_real_allocation_failure_is_out_of_memory(load, tmp_path):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit", FutureWarning)
        torch.jit.save(torch.jit.script(Greedy()), tmp_path / "m.pt")
    runtime = load(tmp_path / "m.pt")
    with pytest.raises(OutOfDeviceMemoryError):
        runtime.infer(np.full((1, 3, SIDE, SIDE), 2.0**24, np.float32))
    assert runtime.infer(np.zeros((1, 3, SIDE, SIDE), np.float32)).scores.shape == (1, 3072)


def test_the_models_own_failure_is_passed_on(load, torchscript_case):
    runtime = load(torchscript_case.path)
    with pytest.raises(RowError, match=r"^RuntimeError: Given groups=1.*channels") as caught:
        runtime.infer(np.zeros((1, 4, SIDE, SIDE), np.float32))
    assert caught.value.code == ErrorCode.MODEL_FAILED
    assert "\n" not in caught.value.message


class Picky(torch.nn.Module):
    def forward(self, x):
        if bool(x.max() == 1):
            raise ValueError("ones are not taken")
        assert bool(x.max() != 2), "twos neither,\nsee the manual"
        return x.flatten(1)


@pytest.mark.parametrize(
    ("value", "message"),
    [(1, "ValueError: ones are not taken"), (2, "RuntimeError: AssertionError: twos neither,")],
)
def test_what_a_models_own_code_raises_is_one_line(load, tmp_path, value, message):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit", FutureWarning)
        torch.jit.save(torch.jit.script(Picky()), tmp_path / "m.pt")
    runtime = load(tmp_path / "m.pt")
    with pytest.raises(RowError) as caught:
        runtime.infer(np.full((1, 3, SIDE, SIDE), value, np.float32))
    assert caught.value.message == message


class OneAtATime(torch.nn.Module):
    def forward(self, x):
        return x.view(1, 3, -1).mean(2)


class TwoInputs(torch.nn.Module):
    def forward(self, x, mask):
        return x.mean((2, 3)) * mask


def script(module, path):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit", FutureWarning)
        torch.jit.save(torch.jit.script(module), path)
    return path


def test_a_batch_size_of_one_in_the_file_is_told(load, tmp_path):
    with pytest.raises(ModelError, match="one image at a time: its batch size is fixed at 1") as caught:
        load(script(OneAtATime(), tmp_path / "m.pt"))
    assert (caught.value.key, "batch dimension" in caught.value.hint) == ("model.path", True)


def test_two_inputs_are_told(load, tmp_path):
    with pytest.raises(ModelError, match=r"the model takes 2 inputs \(x, mask\)") as caught:
        load(script(TwoInputs(), tmp_path / "m.pt"))
    assert (caught.value.key, "images alone" in caught.value.hint) == ("model.path", True)
