"""Model files are data: nothing in them runs, reads or writes anything, unless the job says `model.trusted: true`.

Every malicious file here would leave a file `ran` behind.
"""

from __future__ import annotations

import hashlib
import logging
import pickle
import zipfile
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import torchvision
from onnx import TensorProto, helper, numpy_helper

from sparkinfer.core.errors import ModelError, SpecError
from sparkinfer.core.model_spec import Artifact, ModelSpec
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.core.protocols import LoadRequest
from sparkinfer.core.registry import create_runtime
from sparkinfer.driver.config import load_job
from sparkinfer.driver.model import model
from tests.executor.chain import batch, fake_plan, png_of, run

PREPROCESS = {"preset": "none", "crop": 64}


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    return tmp_path / "ran"


@pytest.fixture(scope="module")
def weights():
    return torchvision.models.squeezenet1_1(num_classes=3).state_dict()


@pytest.fixture(params=["zip", "legacy", "bare pickle"])
def malicious(request, ran, weights, tmp_path) -> Path:
    path = tmp_path / "m.pth"
    if request.param == "bare pickle":
        path.write_bytes(pickle.dumps({"state_dict": {}, "hook": Touch(ran)}, protocol=2))
    else:
        content = {"state_dict": weights, "hook": Touch(ran)}
        torch.save(content, path, _use_new_zipfile_serialization=request.param == "zip")
    return path


def opened(path: Path, **keys):
    """As the executor opens it."""
    runtime = create_runtime(keys.pop("format", "torch"))
    spec = ModelSpec.model_validate({"path": str(path), **keys})
    runtime.load(LoadRequest(str(path), spec, PreprocessSpec.model_validate(PREPROCESS)))
    return runtime


def test_the_driver_runs_no_pickle(malicious, ran, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    with pytest.raises(ModelError) as caught:
        _ = model(malicious, arch="squeezenet1_1", preprocess=PREPROCESS).inspected
    assert not ran.exists()
    assert "model.trusted: true" in str(caught.value.hint)
    assert "can run code" in caught.value.message


def test_an_executor_runs_no_pickle(malicious, ran, tmp_path):
    content = malicious.read_bytes()
    artifact = Artifact(digest=hashlib.sha256(content).hexdigest(), size=len(content), suffix=".pth")
    plan = fake_plan(
        tmp_path,
        model=ModelSpec(path="m.pth", format="torch", arch="squeezenet1_1"),
        artifact=artifact,
        source=lambda: content,
    )
    with pytest.raises(ModelError, match="can run code"):
        run(plan, batch(png_of(1, 2, 3)))
    assert not ran.exists()


def test_a_trusted_pickle_is_opened_and_the_log_says_so(ran, weights, tmp_path, caplog):
    path = tmp_path / "m.pth"
    torch.save({"state_dict": weights, "hook": Touch(ran)}, path)
    with caplog.at_level(logging.WARNING):
        runtime = opened(path, arch="squeezenet1_1", trusted=True)
    assert runtime.signature().num_classes == 3
    assert ran.exists()
    assert "model.trusted" in caplog.text


def test_a_trusted_pickle_of_a_whole_module(tmp_path):
    torch.save(torchvision.models.squeezenet1_1(num_classes=3), tmp_path / "m.pth")
    with pytest.raises(ModelError, match="SqueezeNet"):
        opened(tmp_path / "m.pth", arch="squeezenet1_1")
    assert opened(tmp_path / "m.pth", arch="squeezenet1_1", trusted=True).signature().num_classes == 3


def test_trust_does_not_change_how_a_plain_checkpoint_is_read(ran, weights, tmp_path, monkeypatch):
    torch.save(weights, tmp_path / "m.pth")
    load, asked = torch.load, []

    def noting(*arguments, weights_only, **options):
        asked.append(weights_only)
        return load(*arguments, weights_only=weights_only, **options)

    monkeypatch.setattr(torch, "load", noting)
    opened(tmp_path / "m.pth", arch="squeezenet1_1", trusted=True)
    assert asked == [True]


class Plain(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(dim=[2, 3])


class Saves(Plain):
    """`aten::save`, a program's own way to write a file."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.save(x, self.path)
        return x.mean(dim=[2, 3])


def scripted(module: torch.nn.Module, path: Path) -> Path:
    torch.jit.script(module).save(path)
    return path


def rewritten(path: Path, change) -> Path:
    """The archive with other members: `change(name, content)` gives the new content."""
    with zipfile.ZipFile(path) as archive:
        members = [(info.filename, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members:
            archive.writestr(name, change(name, content))
    return path


def test_a_torchscript_archive_runs_no_pickle_of_python(ran, tmp_path):
    evil = pickle.dumps(Touch(ran), protocol=2)
    for member in ("data.pkl", "constants.pkl"):
        path = scripted(Plain(), tmp_path / "m.pt")
        rewritten(path, lambda name, content, member=member: evil if name.endswith(member) else content)
        with pytest.raises(ModelError, match="TorchScript"):
            opened(path, format="torchscript", trusted=True)
        assert not ran.exists()


@pytest.fixture
def saving(ran, tmp_path) -> Path:
    return scripted(Saves(str(ran)), tmp_path / "saves.pt")


def test_a_torchscript_program_that_writes_files_is_refused(saving, ran):
    with pytest.raises(ModelError) as caught:
        _ = model(saving, preprocess=PREPROCESS).inspected
    assert "'save'" in caught.value.message
    assert "model.trusted: true" in str(caught.value.hint)
    with pytest.raises(ModelError, match="reach files"):
        opened(saving, format="torchscript")
    assert not ran.exists()
    opened(saving, format="torchscript", trusted=True)
    assert ran.exists()  # it would have, indeed: loading tries the model with zeros


@pytest.mark.parametrize(
    "spelling",
    [
        b"torch . save(x, self.path)",
        b'(getattr(torch, "sa\\x76e"))(x, self.path)',
        b"ops.aten.save(x, self.path)",
        b"torch.from_file(self.path, True, 1)",
        b"ops.image.write_file(self.path, x)",
    ],
)
def test_other_spellings_are_refused_too(saving, ran, spelling):
    rewritten(saving, lambda _, content: content.replace(b"torch.save(x, self.path)", spelling))
    with zipfile.ZipFile(saving) as archive:
        assert any(spelling in archive.read(name) for name in archive.namelist())
    with pytest.raises(ModelError, match="reach files"):
        opened(saving, format="torchscript")
    assert not ran.exists()


def test_ordinary_torchscript_needs_no_trust(tmp_path):
    module = torchvision.models.squeezenet1_1(num_classes=3).eval()  # sequences: the code has getattr(self, "0")
    path = scripted(module, tmp_path / "m.pt")
    assert opened(path, format="torchscript").signature().num_classes == 3


def external_model(folder: Path, location: str, where: str = "initializer") -> Path:
    """An ONNX file whose 3 x 4 matrix lies in the file `location`."""
    matrix = numpy_helper.from_array(np.zeros((3, 4), np.float32), "matrix")
    matrix.ClearField("raw_data")
    matrix.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("length", "48")):
        matrix.external_data.add(key=key, value=value)
    nodes = [
        helper.make_node("GlobalAveragePool", ["image"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "matrix"], ["scores"]),
    ]
    if where == "constant":
        nodes.insert(0, helper.make_node("Constant", [], ["matrix"], value=matrix))
    graph = helper.make_graph(
        nodes,
        "split",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, 64, 64])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 4])],
        [matrix] if where == "initializer" else [],
    )
    path = folder / "m.onnx"
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(made.SerializeToString())
    return path


@pytest.mark.parametrize("where", ["initializer", "constant"])
@pytest.mark.parametrize("location", ["{outside}", "../outside", "sub/../../outside", "./../outside"])
def test_an_onnx_file_reads_nothing_outside_its_folder(tmp_path, location, where):
    (tmp_path / "outside").write_bytes(bytes(48))
    (tmp_path / "models" / "sub").mkdir(parents=True)
    path = external_model(tmp_path / "models", location.format(outside=tmp_path / "outside"), where)
    with pytest.raises(ModelError, match="outside its own folder"):
        _ = model(path, preprocess=PREPROCESS).inspected


@pytest.mark.parametrize("location", ["{outside}", "../outside"])
def test_onnx_runtime_itself_reads_nothing_outside_either(tmp_path, location):
    """The executors have no package `onnx` to look with."""
    (tmp_path / "outside").write_bytes(bytes(48))
    (tmp_path / "models").mkdir()
    path = external_model(tmp_path / "models", location.format(outside=tmp_path / "outside"))
    with pytest.raises(ModelError, match="cannot open the model"):
        opened(path, format="onnx")


def test_a_label_file_in_yaml_or_pickle_is_text(ran, tmp_path):
    labels = tmp_path / "labels.pkl"
    labels.write_bytes(pickle.dumps(Touch(ran)))
    (tmp_path / "m.fake").write_text('{"num_classes": 3}')
    with pytest.raises(ModelError):
        _ = model(tmp_path / "m.fake", labels=str(labels), preprocess=PREPROCESS).inspected
    assert not ran.exists()


@pytest.mark.parametrize(
    "tag", ["!!python/object/apply:pathlib.Path.touch [{path}]", "!!python/name:os.system", "!!python/module:os"]
)
def test_yaml_makes_no_python_objects(tmp_path, ran, tag):
    job = tmp_path / "job.yaml"
    job.write_text(f"source: {{images: x}}\nmodel: {{path: m.onnx}}\nname: {tag.format(path=ran)}\n")
    with pytest.raises(SpecError, match="python"):
        load_job(str(job))
    with pytest.raises(SpecError):
        load_job(None, [f"batch.size={tag.format(path=ran)}"])
    assert not ran.exists()


def test_onnx_custom_operators_are_not_loaded(tmp_path):
    """No option of `model.options` names a library: a graph with foreign operators does not open."""
    graph = helper.make_graph(
        [helper.make_node("Evil", ["image"], ["scores"], domain="evil")],
        "evil",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 3, 64, 64])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 4])],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("evil", 1)]
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    with pytest.raises(ModelError, match="has no session entry"):
        opened(path, format="onnx", options={"session": {"session.custom_ops_library": "/tmp/evil.so"}})
