"""Temporary and cache files: the user's alone, and no link or rival leads them astray.

The node's model cache has its own suite: tests/executor/test_artifact.py.
"""

from __future__ import annotations

import ast
import os
import stat
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

import sparkinfer
from sparkinfer.core.errors import ModelError, SinkError
from sparkinfer.driver.model import _scratch
from sparkinfer.driver.spark.jvm import archive_options
from sparkinfer.executor.optimization import _put_in_place
from sparkinfer.runtimes._onnx_file import bring_external_files, load_model, save_model
from tests.security.test_model_files import external_model

PACKAGE = Path(sparkinfer.__file__).parent


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def test_the_drivers_scratch_folder_is_private_whatever_the_umask(open_umask):
    assert mode(_scratch()) == 0o700


def used_of(module: str, path: Path) -> set[str]:
    """Attributes of a module that a file names."""
    return {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == module
    }


def test_every_temporary_file_is_made_by_tempfile_s_safe_functions():
    """`mkdtemp` and its kin make private files under names that nobody can guess; nothing else names the folder."""
    safe = {"mkdtemp", "TemporaryDirectory", "TemporaryFile", "NamedTemporaryFile", "gettempdir"}
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        used = used_of("tempfile", path)
        assert used <= safe, path
        assert "gettempdir" not in used or path.name == "artifact.py", path  # which checks what it finds there
        constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        assert not any(isinstance(value, str) and value.startswith("/tmp") for value in constants), path


SERVERS = {"driver/watching/receiver.py": {"bind"}, "driver/watching/metrics.py": {"start_http_server"}}
"""What listens, by the call that does it: see `tests/driver/test_receiver.py` and `test_metrics.py`."""


def test_sockets_are_those_of_security_md():
    """Whoever adds one binds it to one address, and changes SECURITY.md too."""
    for path in PACKAGE.rglob("*.py"):
        imported = {
            name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
        }
        servers = {"socketserver", "http.server", "asyncio", "wsgiref", "xmlrpc", "multiprocessing.managers"}
        assert not imported & servers, path
        # What the guard of a worker has is a pair: it has no address to connect to.
        nodes = list(ast.walk(ast.parse(path.read_text())))
        named = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        named |= {node.id for node in nodes if isinstance(node, ast.Name)}
        listening = named & {"bind", "listen", "create_server", "create_connection", "Listener", "start_http_server"}
        assert listening == SERVERS.get(str(path.relative_to(PACKAGE)), set()), path


@pytest.fixture
def java(tmp_path: Path) -> Path:
    (tmp_path / "java").mkdir()
    return tmp_path / "java"


def test_the_class_archive_s_folder_is_made_private(java, tmp_path, open_umask):
    folder = tmp_path / "cache" / "sparkinfer"
    assert "ArchiveClassesAtExit" in archive_options(java, folder)
    assert mode(folder) == 0o700
    (claim,) = folder.glob("*.claim")
    assert mode(claim) == 0o600


@pytest.mark.parametrize("open_to", [0o755, 0o750, 0o770, 0o707])
def test_a_class_archive_where_others_have_access_is_not_used(java, tmp_path, open_to):
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(open_to)
    assert archive_options(java, folder) == ""


def test_a_class_archive_in_a_folder_of_someone_else_is_not_used(java, tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    me = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: me + 1)
    assert archive_options(java, folder) == ""


def test_a_link_or_a_foreign_file_in_place_of_the_class_archive_is_not_used(java, tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    options = archive_options(java, folder)
    (left,) = (word.split("=", 1)[1] for word in options.split() if "ArchiveClassesAtExit" in word)
    archive = Path(left.rsplit(".", 2)[0] + ".jsa")
    (tmp_path / "evil").write_bytes(b"classes")
    archive.symlink_to(tmp_path / "evil")
    assert archive_options(java, folder) == ""
    archive.unlink()
    later = Path(left).with_suffix(".0.new")
    later.symlink_to(tmp_path / "evil")
    assert "SharedArchiveFile" not in archive_options(java, folder, now=1e12)
    later.unlink()
    archive.write_bytes(b"classes")
    assert f"SharedArchiveFile={archive}" in archive_options(java, folder)
    lstat = os.lstat

    def foreign(path, *arguments, **options):
        found = lstat(path, *arguments, **options)
        return os.stat_result((*found[:4], found.st_uid + 1, *found[5:])) if str(path) == str(archive) else found

    monkeypatch.setattr(Path, "lstat", foreign)
    assert archive_options(java, folder) == ""


def test_of_many_processes_one_leaves_the_class_archive(java, tmp_path):
    code = "import sys; from pathlib import Path; from sparkinfer.driver.spark.jvm import _claim; "
    code += "sys.stdin.readline(); print(_claim(Path(sys.argv[1]), 0.0), flush=True)"
    claim = tmp_path / "claim"
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(claim)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    for racer in racers:
        racer.stdin.write("\n")
        racer.stdin.flush()
    assert sorted(racer.communicate()[0] for racer in racers) == ["False\n", "False\n", "True\n"]


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    path = tmp_path / "precious"
    path.write_text("precious")
    return path


def test_an_optimised_model_is_not_written_through_a_planted_link(tmp_path, precious, monkeypatch):
    made = tmp_path / "made"
    made.write_bytes(b"model")
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    target = tmp_path / "out" / "m.onnx"
    target.parent.mkdir()
    (target.parent / ".m.onnx.guessed.partial").symlink_to(precious)
    with pytest.raises(SinkError, match="File exists"):
        _put_in_place(made, target)
    assert precious.read_text() == "precious"
    target.symlink_to(precious)  # of the name itself only the link is replaced
    monkeypatch.undo()
    _put_in_place(made, target)
    assert (precious.read_text(), target.read_bytes(), target.is_symlink()) == ("precious", b"model", False)


def test_an_onnx_file_is_not_written_through_a_planted_link(tmp_path, precious, monkeypatch):
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["x2"])], "g", [info], [])
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    (tmp_path / ".m.onnx.guessed.partial").symlink_to(precious)
    with pytest.raises(FileExistsError):
        save_model(helper.make_model(graph), tmp_path / "m.onnx")
    assert precious.read_text() == "precious"


def test_weights_are_not_copied_through_a_planted_link(tmp_path, precious, monkeypatch):
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (source / "weights").write_bytes(bytes(48))
    made: onnx.ModelProto = load_model(external_model(source, "weights"))
    (target / "weights").symlink_to(tmp_path / "not there")
    with pytest.raises(FileExistsError):
        bring_external_files(made, source, target)
    assert not (tmp_path / "not there").exists()
    (target / "weights").unlink()
    (target / "weights").symlink_to(precious)
    with pytest.raises(ModelError, match="in the way"):
        bring_external_files(made, source, target)
    assert precious.read_text() == "precious"
