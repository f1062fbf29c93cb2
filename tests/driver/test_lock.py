"""One run at a time: the kernel's lock, and signs of life where there is none."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sparkinfer.core.errors import SpecError, UserError
from sparkinfer.driver.checkpoints.lock import STALE_SECONDS, locked


class Folder:
    """A checkpoint folder, remote or local, in a dict."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.files: dict[str, dict[str, Any]] = {}

    def exists(self, name: str) -> bool:
        return name in self.files

    def read(self, name: str, *, remedy: str) -> dict[str, Any]:
        return json.loads(json.dumps(self.files[name]))

    def write(self, name: str, content: dict[str, Any]) -> None:
        self.files[name] = dict(content)

    def delete(self, name: str) -> None:
        del self.files[name]


class Clock:
    """Time that passes only in `sleep`; something may happen then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.at: dict[float, Any] = {}
        monkeypatch.setattr(time, "sleep", self.sleep)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for moment in [m for m in self.at if m <= self.now]:
            self.at.pop(moment)()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def nobody(_: str) -> None:
    """Hears nothing."""


def other(**content: Any) -> dict[str, Any]:
    """The owner file of a run on another machine."""
    return {"run_id": "r1", "host": "elsewhere", "pid": 1, "since": "noon", "token": "t1", "beat": 7, **content}


def test_two_runs_on_one_machine(tmp_path: Path) -> None:
    folder: Any = Folder(str(tmp_path / "check"))
    with locked(folder, "first", nobody) as held:
        held.check()
        with pytest.raises(SpecError) as caught, locked(folder, "second", nobody):
            pass
    assert caught.value.key == "resume.checkpoint"
    assert f"run first (process {os.getpid()} on " in caught.value.message
    with locked(folder, "third", nobody):
        pass


@pytest.mark.parametrize("place", ["lock is a folder", "the folder is a file", "the disk is full"])
def test_a_lock_that_cannot_be_written_is_told(tmp_path: Path, place: str) -> None:
    folder: Any = Folder(str(tmp_path / "check"))
    if place == "lock is a folder":
        (tmp_path / "check" / "lock").mkdir(parents=True)
    elif place == "the folder is a file":
        (tmp_path / "check").write_text("x")
    else:
        (tmp_path / "check").mkdir()
        (tmp_path / "check" / "lock").symlink_to("/dev/full")
    with pytest.raises(UserError, match="check/lock' cannot be written: ") as caught, locked(folder, "first", nobody):
        pass
    assert caught.value.key == "resume.checkpoint"
    assert caught.value.hint


def test_the_kernel_lets_go_of_a_killed_run(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from types import SimpleNamespace\n"
        "from sparkinfer.driver.checkpoints.lock import locked\n"
        "with locked(SimpleNamespace(folder=sys.argv[1]), 'first', print):\n"
        "    print('held', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        folder: Any = Folder(str(tmp_path))
        with pytest.raises(SpecError, match="in use by run first"), locked(folder, "second", nobody):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
    with locked(folder, "third", nobody):
        pass


def test_a_remote_folder_is_held_and_let_go(clock: Clock) -> None:
    folder: Any = Folder("hdfs://nn/check")
    with locked(folder, "first", nobody) as held:
        assert folder.files["owner.json"]["run_id"] == "first"
        held.check()
    assert folder.files == {}


def test_a_living_owner_is_respected(clock: Clock) -> None:
    folder: Any = Folder("hdfs://nn/check")
    folder.files["owner.json"] = other()
    clock.at[10.0] = lambda: folder.write("owner.json", other(beat=8))
    said: list[str] = []
    refused = pytest.raises(SpecError, match=r"in use by run r1 \(process 1 on elsewhere")
    with refused, locked(folder, "second", said.append):
        pass
    assert "waiting" in said[0]
    assert clock.now < STALE_SECONDS


def test_a_silent_owner_is_replaced(clock: Clock) -> None:
    folder: Any = Folder("hdfs://nn/check")
    folder.files["owner.json"] = other()
    with locked(folder, "second", nobody):
        assert folder.files["owner.json"]["run_id"] == "second"
    assert clock.now >= STALE_SECONDS


def test_a_dead_process_of_this_machine_is_replaced_at_once(clock: Clock) -> None:
    folder: Any = Folder("hdfs://nn/check")
    folder.files["owner.json"] = other(host=socket.gethostname(), pid=2**22 + 1, process_started="12345")
    with locked(folder, "second", nobody):
        pass
    assert clock.now < STALE_SECONDS


def test_who_was_taken_over_finds_out(clock: Clock) -> None:
    folder: Any = Folder("hdfs://nn/check")
    with locked(folder, "first", nobody) as held:
        folder.files["owner.json"] = other()
        with pytest.raises(SpecError, match="in use by run r1"):
            held.check()
    assert folder.files["owner.json"]["run_id"] == "r1"


def test_of_two_at_once_the_last_writer_has_it(clock: Clock) -> None:
    folder: Any = Folder("hdfs://nn/check")
    clock.at[0.5] = lambda: folder.write("owner.json", other())
    with pytest.raises(SpecError, match="in use by run r1"), locked(folder, "first", nobody):
        pass
