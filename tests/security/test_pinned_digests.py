"""`model.digest` pins a model: any other file is refused, on the driver and on every node."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from sparkinfer.core.errors import ModelError, SpecError
from sparkinfer.core.model_spec import Artifact
from sparkinfer.driver import model as module
from sparkinfer.driver.model import model
from sparkinfer.executor.artifact import cache_folder, materialise, release
from tests.executor.chain import RAW
from tests.security.test_model_files import external_model


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "colours.fake"
    path.write_text(json.dumps({"num_classes": 3}))
    return path


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("write", [str, str.upper, "sha256:{}".format, lambda d: f"sha256:{d.upper()}"])
def test_the_pinned_file_opens(file, write):
    found = model(file, digest=write(digest_of(file)), preprocess=RAW).inspected
    assert found.digest == found.artifact.digest == digest_of(file)
    assert found.path.read_bytes() == file.read_bytes()


def test_another_file_is_refused_unopened(file, monkeypatch):
    expected = digest_of(file)
    file.write_text(json.dumps({"num_classes": 4}))
    monkeypatch.setattr(module, "inspect", lambda *_, **__: pytest.fail("the file was opened"))
    with pytest.raises(ModelError) as caught:
        _ = model(file, digest=expected, preprocess=RAW).inspected
    assert caught.value.key == "model.digest"
    assert expected in caught.value.message
    assert digest_of(file) in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("wrong", ["abc", "sha256:", "md5:" + "0" * 64, "0" * 63, "g" * 64])
def test_what_is_no_digest_is_a_spec_error(file, wrong):
    with pytest.raises(SpecError) as caught:
        model(file, digest=wrong)
    assert caught.value.key == "model.digest"


def test_a_file_that_is_exchanged_after_the_check_is_not_opened(file, monkeypatch):
    """What was checked is a private copy, and that is what is inspected and sent."""
    expected, inspect = digest_of(file), module.__dict__["inspect"]

    def exchange(path, *arguments, **options):
        file.write_text(json.dumps({"num_classes": 4}))
        assert Path(path) != file
        return inspect(path, *arguments, **options)

    monkeypatch.setattr(module, "inspect", exchange)
    monkeypatch.setattr(module, "_asked", {})
    found = model(file, digest=expected, preprocess=RAW).inspected
    assert found.signature.num_classes == 3
    assert digest_of(found.path) == expected


def test_a_copy_that_is_not_what_was_checked_is_refused(file, monkeypatch):
    monkeypatch.setattr(module, "_pinned", {})
    monkeypatch.setattr("shutil.copyfile", lambda _source, target: Path(target).write_text("other"))
    with pytest.raises(ModelError, match="is not the file that is pinned"):
        _ = model(file, digest=digest_of(file), preprocess=RAW).inspected


def test_weights_in_other_files_cannot_be_pinned(tmp_path):
    path = external_model(tmp_path, "weights")
    (tmp_path / "weights").write_bytes(bytes(48))
    assert model(path, preprocess={"preset": "none", "crop": 64}).inspected.signature.num_classes == 4
    with pytest.raises(ModelError) as caught:
        _ = model(path, digest=digest_of(path), preprocess={"preset": "none", "crop": 64}).inspected
    assert "weights are in a file beside the model; save it as one file" in str(caught.value.hint)


@pytest.fixture
def cached(tmp_path, monkeypatch):
    monkeypatch.setenv("SPARKINFER_CACHE", str(tmp_path / "cache"))
    content = b"model" * 1000
    artifact = Artifact(digest=hashlib.sha256(content).hexdigest(), size=len(content), suffix=".onnx")
    path = materialise(artifact, lambda: content)
    yield artifact, content, path
    release(path)


def test_a_swapped_file_of_the_same_size_in_the_node_cache_is_replaced(cached):
    artifact, content, path = cached
    release(path)  # as another process of the node finds it
    path.write_bytes(b"x" * len(content))
    assert materialise(artifact, lambda: content).read_bytes() == content


def test_a_swap_under_a_process_that_has_verified_is_noticed(cached):
    artifact, content, path = cached
    path.rename(cache_folder() / "aside")
    path.write_bytes(b"x" * len(content))
    assert materialise(artifact, lambda: content).read_bytes() == content


@pytest.mark.parametrize("kind", [bytes, Path])
def test_a_broadcast_and_a_spark_file_are_verified_alike(cached, tmp_path, kind):
    artifact, content, path = cached
    release(path)
    path.unlink()
    swapped = tmp_path / "swapped"
    swapped.write_bytes(content[:-1] + b"x")
    with pytest.raises(ModelError, match=artifact.digest):
        materialise(artifact, lambda: swapped if kind is Path else swapped.read_bytes())
    assert not path.exists()
