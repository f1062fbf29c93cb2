"""What the cluster's scripts say on machines where something is missing; no daemon is started."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.cluster.yarn import ROOT, SCRIPT

PACK = ROOT / "deploy" / "pack_env.sh"
TOOLS = ["bash", "cat", "dirname", "env", "grep", "head", "id", "mkdir", "readlink", "sed"]


@pytest.fixture
def bare(tmp_path):
    """Environment variables of a machine with the shell's tools, and nothing else."""
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / "bin" / tool).symlink_to(found)
    return {"PATH": str(tmp_path / "bin"), "JVM_FOLDER": str(tmp_path / "none"), "HOME": str(tmp_path)}


def hadoop(folder, *arguments, **environment):
    command = [sys.executable, SCRIPT, "--folder", folder, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, env=environment or dict(os.environ))


def test_without_java_nothing_starts_and_one_line_says_what_to_install(bare, tmp_path):
    answer = hadoop(tmp_path / "cluster", "start", **bare)
    assert answer.returncode == 2
    (line,) = answer.stderr.splitlines()
    assert line.startswith("cluster: sparkinfer needs Java 17 or 21")
    assert "apt-get install openjdk-17-jre-headless" in line
    assert not (tmp_path / "cluster").exists()


def test_a_cluster_that_was_never_started_is_told(tmp_path):
    for arguments in (["stop"], ["dfs", "-ls", "/"], ["yarn", "node", "-list"]):
        answer = hadoop(tmp_path / "cluster", *arguments)
        assert answer.returncode == 1
        assert answer.stderr == f"cluster: no cluster in {tmp_path / 'cluster'}: start one with `make cluster`\n"


def test_an_unknown_yarn_command_is_told(tmp_path):
    (tmp_path / "cluster.json").write_text(json.dumps({"mark": "none"}))
    answer = hadoop(tmp_path, "yarn", "queue")
    assert answer.returncode == 1
    assert answer.stderr == "cluster: knows dfs, yarn application, yarn node; not yarn queue\n"


def test_without_maven_central_the_jars_to_copy_are_named(bare, tmp_path):
    """A Java that fails, as spark-submit does when it cannot fetch."""
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/usr/bin/env bash\necho 'download failed' >&2\nexit 1\n")
    java.chmod(0o755)
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="17.0.1"\n')
    answer = hadoop(tmp_path / "cluster", "start", **bare, JAVA_HOME=str(tmp_path / "jdk"))
    assert answer.returncode == 2
    assert "cannot be fetched from Maven Central" in answer.stderr
    assert "hadoop-client-minicluster-" in answer.stderr
    assert f"{tmp_path}/.cache/sparkinfer/ivy/jars" in answer.stderr


def test_packing_names_its_archive_and_its_python(bare, tmp_path):
    usage = subprocess.run([PACK, "environment.zip"], check=False, capture_output=True, text=True, env=bare)
    assert (usage.returncode, usage.stdout) == (2, "")
    assert usage.stderr.startswith("usage: deploy/pack_env.sh ENV.tar.gz")
    bare["PYTHON"] = "python-that-is-not-there"
    answer = subprocess.run([PACK, tmp_path / "e.tar.gz"], check=False, capture_output=True, text=True, env=bare)
    assert answer.returncode == 1
    (line,) = answer.stderr.splitlines()
    assert "needs Python 3.11 with venv" in line
    assert not (tmp_path / "e.tar.gz").exists()
