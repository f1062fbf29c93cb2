"""The script that makes both environments: what it asks pip for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ALL = ["--editable", ".[torch,onnx,metrics,progress,demo,dev]"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([], ["constraints.txt", *ALL]),
        (["other.txt"], ["other.txt", *ALL]),
        (["other.txt", "--editable", ".", "-r", "more.txt"], ["other.txt", "--editable", ".", "-r", "more.txt"]),
    ],
)
def test_what_is_installed(tmp_path, given, expected):
    venv = tmp_path / "my venv"
    (venv / "bin").mkdir(parents=True)
    python = venv / "bin" / "python"
    python.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > "{tmp_path}/asked"\n')
    python.chmod(0o755)
    (venv / "installed-old").touch()
    subprocess.run([ROOT / "deploy" / "make_env.sh", venv, venv / "installed-new", *given], check=True)
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == ["-m", "pip", "install", "--quiet", "--constraint", *expected]
    assert sorted(path.name for path in venv.iterdir()) == ["bin", "installed-new"]
