from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import subprocess
import sys

import pytest

from sparkinfer.core.errors import ModelError
from sparkinfer.core.model_spec import Artifact
from sparkinfer.executor import artifact as module
from sparkinfer.executor.artifact import cache_folder, materialise, release

CONTENT = bytes(range(256)) * 40


def described(content=CONTENT, suffix=".onnx"):
    return Artifact(digest=hashlib.sha256(content).hexdigest(), size=len(content), suffix=suffix)


def giving(content):
    return lambda: content


def never():
    raise AssertionError("fetched although the node has a sound copy")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("SPARKINFER_CACHE", str(folder))
    yield folder
    for path in list(module._in_use):
        release(path)


@pytest.fixture
def child(cache):
    """Starts Python processes that share the cache; each prints a line, then waits for one."""
    started = []

    def start(code, *arguments):
        prelude = (
            "import sys, os; from pathlib import Path\n"
            "from sparkinfer.core.model_spec import Artifact\n"
            "from sparkinfer.executor.artifact import materialise\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", prelude + code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


MATERIALISE = """
artifact = Artifact.model_validate_json(sys.argv[1])
def fetch():
    with open(sys.argv[3], "a") as log:
        log.write("fetched\\n")
    return Path(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
path = materialise(artifact, fetch)
print(path, flush=True)
sys.stdin.readline()
"""


def tell(process):
    process.stdin.write("\n")
    process.stdin.flush()


def test_bytes_and_files_are_copied_once(cache, tmp_path):
    source = tmp_path / "model.onnx"
    source.write_bytes(CONTENT)
    path = materialise(described(), lambda: source)
    assert path == cache / f"{described().digest}.onnx"
    assert path.read_bytes() == CONTENT
    assert materialise(described(), never) == path
    other = described(b"other")
    assert materialise(other, lambda: b"other").read_bytes() == b"other"
    assert sorted(p.name for p in cache.iterdir()) == sorted([".lock", path.name, other.file_name])


def test_folder_and_files_are_private(cache):
    path = materialise(described(), lambda: CONTENT)
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_default_folder_is_the_users_own(monkeypatch, tmp_path):
    monkeypatch.delenv("SPARKINFER_CACHE")
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    own = tmp_path / f"sparkinfer-{os.geteuid()}"
    assert cache_folder() == own / "models"
    assert materialise(described(), lambda: CONTENT).parent == own / "models"
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    own.chmod(0o777)
    with pytest.raises(ModelError, match="private"):
        materialise(described(b"other"), never)


def test_many_processes_fetch_once(cache, child, tmp_path):
    source, log = tmp_path / "model.onnx", tmp_path / "log"
    source.write_bytes(CONTENT)
    processes = [child(MATERIALISE, described().model_dump_json(), source, log) for _ in range(5)]
    assert [p.stdout.readline() for p in processes] == ["ready\n"] * 5
    for process in processes:
        tell(process)
    paths = {p.stdout.readline().strip() for p in processes}
    assert paths == {str(cache / described().file_name)}
    assert log.read_text() == "fetched\n"
    assert (cache / described().file_name).read_bytes() == CONTENT


def test_one_writer_at_a_time(cache):
    def fetch():
        with (cache / ".lock").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return CONTENT

    materialise(described(), fetch)
    with (cache / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_copy_that_is_evicted_while_it_is_opened_is_fetched_again(cache, monkeypatch):
    path = materialise(described(), lambda: CONTENT)
    release(path)
    flock = fcntl.flock

    def evict_first(descriptor, operation):
        if operation == fcntl.LOCK_SH and os.fstat(descriptor).st_nlink and evictions:
            evictions.pop()
            path.unlink()
        flock(descriptor, operation)

    evictions = [1]
    monkeypatch.setattr(fcntl, "flock", evict_first)
    assert materialise(described(), lambda: CONTENT).read_bytes() == CONTENT
    assert not evictions


def test_a_writer_that_is_killed_leaves_nothing_in_the_way(cache, child, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    process = child(MATERIALISE, described().model_dump_json(), pipe, tmp_path / "log")
    tell(process)
    with pipe.open("wb") as feed:
        feed.write(CONTENT[:5000])
        feed.flush()
        process.kill()
        process.wait()
    assert [p.name for p in cache.iterdir() if p.suffix == ".onnx" and not p.name.startswith(".")] == []
    path = materialise(described(), lambda: CONTENT)
    assert path.read_bytes() == CONTENT
    assert sorted(p.name for p in cache.iterdir()) == [".lock", path.name]


def test_wrong_bytes_are_refused_and_not_kept(cache):
    for wrong in (CONTENT[:-1], CONTENT[:-1] + b"x", b""):
        with pytest.raises(ModelError) as caught:
            materialise(described(), giving(wrong))
        assert hashlib.sha256(wrong).hexdigest() in caught.value.message
        assert described().digest in caught.value.message
    assert [p.name for p in cache.iterdir()] == [".lock"]
    assert materialise(described(), lambda: CONTENT).read_bytes() == CONTENT


def test_a_failing_fetch_passes_on_and_can_be_repeated(cache):
    def fail():
        raise ConnectionError("lost")

    with pytest.raises(ConnectionError, match="lost"):
        materialise(described(), fail)
    assert materialise(described(), lambda: CONTENT).read_bytes() == CONTENT


@pytest.mark.parametrize("damage", [CONTENT[:-1] + b"\0", CONTENT[:100], b""])
def test_a_damaged_copy_is_replaced(damage):
    path = materialise(described(), lambda: CONTENT)
    release(path)
    path.write_bytes(damage)
    assert materialise(described(), lambda: CONTENT).read_bytes() == CONTENT


def test_a_copy_is_verified_once_per_process(monkeypatch):
    path = materialise(described(), lambda: CONTENT)
    monkeypatch.setattr(module, "_is_sound", never)
    assert materialise(described(), never) == path


def test_a_copy_that_was_removed_is_fetched_again():
    materialise(described(), lambda: CONTENT).unlink()
    assert materialise(described(), lambda: CONTENT).read_bytes() == CONTENT


def test_a_planted_link_is_refused(cache, tmp_path):
    target = tmp_path / "elsewhere"
    target.write_bytes(CONTENT)
    cache.mkdir(mode=0o700)
    (cache / described().file_name).symlink_to(target)
    with pytest.raises(ModelError, match="link"):
        materialise(described(), lambda: CONTENT)
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("name", [".lock", f".partial-{described().digest}"])
def test_links_under_other_names_are_not_followed(cache, tmp_path, name):
    target = tmp_path / "elsewhere"
    target.write_bytes(b"precious")
    cache.mkdir(mode=0o700)
    (cache / name).symlink_to(target)
    if name == ".lock":
        with pytest.raises(ModelError, match="lock file"):
            materialise(described(), lambda: CONTENT)
    else:
        assert materialise(described(), lambda: CONTENT).read_bytes() == CONTENT
    assert target.read_bytes() == b"precious"


def test_a_linked_folder_is_refused(cache, tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    cache.symlink_to(tmp_path / "real")
    with pytest.raises(ModelError, match="cannot be used"):
        materialise(described(), never)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o755])
def test_an_open_folder_is_refused(cache, mode):
    cache.mkdir()
    cache.chmod(mode)
    with pytest.raises(ModelError) as caught:
        materialise(described(), never)
    assert f"mode {mode:04o}" in caught.value.message
    assert caught.value.key == "SPARKINFER_CACHE"


def test_a_folder_of_someone_else_is_refused(cache, monkeypatch):
    cache.mkdir(mode=0o700)
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(ModelError, match=f"belongs to uid {me}"):
        materialise(described(), never)


def test_a_folder_that_cannot_be_made_says_so(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SPARKINFER_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(ModelError, match="cannot be used"):
        materialise(described(), never)


def test_a_full_disk_says_so(cache, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_copy", full)
    with pytest.raises(ModelError, match="No space left"):
        materialise(described(), lambda: CONTENT)


def stored(cache):
    return {p.name for p in cache.iterdir()} - {".lock"}


def test_the_least_recently_used_goes_first(cache):
    contents = [bytes([n]) * 1000 for n in range(4)]
    for age, content in ((3, contents[0]), (1, contents[1]), (2, contents[2])):
        path = materialise(described(content), giving(content))
        release(path)
        os.utime(path, (1_000_000 - age, 1_000_000 - age))
    materialise(described(contents[3]), lambda: contents[3], limit_bytes=2500)
    assert stored(cache) == {described(contents[1]).file_name, described(contents[3]).file_name}


def test_use_makes_a_copy_recent(cache):
    first, second, third = (bytes([n]) * 1000 for n in range(3))
    for moment, content in ((1_000_000, first), (1_000_001, second)):
        path = materialise(described(content), giving(content))
        release(path)
        os.utime(path, (moment, moment))
    release(materialise(described(first), never))
    materialise(described(third), lambda: third, limit_bytes=2000)
    assert stored(cache) == {described(first).file_name, described(third).file_name}


def test_a_copy_in_use_elsewhere_is_never_evicted(cache, child, tmp_path):
    source = tmp_path / "model.onnx"
    source.write_bytes(CONTENT)
    process = child(MATERIALISE, described().model_dump_json(), source, tmp_path / "log")
    tell(process)
    used = process.stdout.readline(), process.stdout.readline().strip()
    assert used == ("ready\n", str(cache / described().file_name))
    release(materialise(described(b"b" * 1000), lambda: b"b" * 1000, limit_bytes=1000))
    assert stored(cache) == {described().file_name, described(b"b" * 1000).file_name}
    tell(process)
    process.wait()
    materialise(described(b"c" * 1000), lambda: b"c" * 1000, limit_bytes=1000)
    assert stored(cache) == {described(b"c" * 1000).file_name}


def test_a_copy_in_use_here_is_never_evicted(cache):
    path = materialise(described(), lambda: CONTENT)
    materialise(described(b"b"), lambda: b"b", limit_bytes=10)
    assert path.read_bytes() == CONTENT
    release(path)
    materialise(described(b"c"), lambda: b"c", limit_bytes=10)
    assert not path.exists()
