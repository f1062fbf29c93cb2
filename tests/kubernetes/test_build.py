"""The build of the API server: what it says where there is none, and that its parts belong together."""

from __future__ import annotations

import os
import re
import subprocess

from tests.kubernetes.conftest import BUILD


def test_what_is_not_built_is_one_clear_line(tmp_path):
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([BUILD, "--no-build"], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert "make kubernetes" in line


def test_the_parts_of_kubernetes_are_of_its_version():
    text = (BUILD.parent / "go.mod").read_text()
    (version,) = re.findall(r"^\tk8s.io/kubernetes v1\.(\S+)$", text, re.MULTILINE)
    parts = re.findall(r"^\t(k8s\.io/\S+) => (\S+) v0\.(\S+)$", text, re.MULTILINE)
    assert len(parts) > 25
    assert all((name, version) == (replacement, number) for name, replacement, number in parts)
