"""The scripts behind `make demo`: finding Java and Python on machines that differ from this one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[1] / "deploy"
TOOLS = ["bash", "cat", "dirname", "env", "grep", "head", "id", "mkdir", "readlink", "sed"]


@pytest.fixture
def machine(tmp_path):
    """A machine with the shell's tools, no Java and an empty folder for Javas."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "jvm").mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / "bin" / tool).symlink_to(found)
    return tmp_path


def add_java(home: Path, version: str, *, with_release: bool = True) -> Path:
    """A Java of a version: with a `release` file, or with nothing but a `java` that can be asked."""
    (home / "bin").mkdir(parents=True)
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    java.chmod(0o755)
    if with_release:
        (home / "release").write_text(f'IMPLEMENTOR="Test"\nJAVA_VERSION="{version}"\n')
    return home


def add_command(machine: Path, name: str, script: str) -> None:
    command = machine / "bin" / name
    command.unlink(missing_ok=True)  # it may be a link to this machine's own tool, which must not be written to
    command.write_text(f"#!/usr/bin/env bash\n{script}\n")
    command.chmod(0o755)


def find_java(machine: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [DEPLOY / "find_java.sh", *arguments],
        env={"PATH": str(machine / "bin"), "JVM_FOLDER": str(machine / "jvm"), **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("with_release", [True, False])
@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.2"])
def test_java_home_comes_first(machine, version, with_release):
    home = add_java(machine / "my java", version, with_release=with_release)
    add_java(machine / "jvm" / "other", "17.0.1")
    assert find_java(machine, JAVA_HOME=str(home)).stdout == f"{home}\n"


def test_then_the_java_on_path_through_links(machine):
    home = add_java(machine / "opt" / "jdk", "21.0.2")
    add_java(machine / "jvm" / "other", "17.0.1")
    (machine / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java(machine).stdout == f"{home}\n"


@pytest.mark.parametrize("version", ["25.0.1", "1.8.0_392", "11.0.22", "8", "170.0"])
def test_other_versions_are_skipped(machine, version):
    other = add_java(machine / "other", version)
    (machine / "bin" / "java").symlink_to(other / "bin" / "java")
    add_java(machine / "jvm" / "a", version)
    right = add_java(machine / "jvm" / "b", "17.0.9")
    assert find_java(machine, JAVA_HOME=str(other)).stdout == f"{right}\n"


def test_folders_without_java_are_skipped(machine):
    (machine / "jvm" / "empty").mkdir()
    right = add_java(machine / "jvm" / "right", "17.0.9")
    assert find_java(machine, JAVA_HOME=str(machine / "none")).stdout == f"{right}\n"


def test_a_missing_java_is_one_clear_line(machine):
    for arguments in ([], ["--no-install"]):
        answer = find_java(machine, *arguments)
        assert (answer.returncode, answer.stdout) == (1, "")
        (line,) = answer.stderr.splitlines()
        assert "Java 17 or 21" in line
        assert "openjdk-17-jre-headless" in line


def test_debian_gets_a_java(machine):
    home = machine / "jvm" / "java-17"
    script = f'[[ $1 == install ]] || exit 0\nmkdir -p "{home}/bin"\necho "$@" > {machine}/asked\n'
    script += f'echo \'JAVA_VERSION="17.0.15"\' > "{home}/release"\ncp /bin/true "{home}/bin/java"'
    add_command(machine, "apt-get", script.replace("cp /bin/true", f"{shutil.which('cp')} /bin/true"))
    add_command(machine, "id", "echo 0")
    answer = find_java(machine)
    assert (answer.returncode, answer.stdout) == (0, f"{home}\n")
    assert "openjdk-17-jre-headless" in (machine / "asked").read_text()


def test_debian_without_root_or_sudo_gets_the_clear_line(machine):
    add_command(machine, "apt-get", "exit 99")
    add_command(machine, "sudo", "exit 1")
    add_command(machine, "id", "echo 1000")
    answer = find_java(machine)
    assert answer.returncode == 1
    assert len(answer.stderr.splitlines()) == 1


def test_with_spark_sets_both_sides(machine):
    home = add_java(machine / "jdk", "17.0.1")
    (machine / "venv" / "bin").mkdir(parents=True)
    show = 'echo "$JAVA_HOME|$PYSPARK_PYTHON|$PYSPARK_DRIVER_PYTHON|${SPARK_HOME:-none}|${PATH%%:*}"'
    answer = subprocess.run(
        [DEPLOY / "with_spark.sh", machine / "venv", "bash", "-c", show],
        env={"PATH": str(machine / "bin"), "JAVA_HOME": str(home), "SPARK_HOME": "/opt/another-spark"},
        capture_output=True,
        text=True,
        check=True,
    )
    bin_folder = machine / "venv" / "bin"
    assert answer.stdout.strip().split("|") == [str(home), *[f"{bin_folder}/python"] * 2, "none", str(bin_folder)]


def test_a_missing_python_is_one_clear_line(machine):
    answer = subprocess.run(
        [DEPLOY / "make_env.sh", machine / "venv", machine / "venv" / "stamp"],
        env={"PATH": str(machine / "bin"), "PYTHON": "python-that-is-not-there"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 1
    (line,) = answer.stderr.splitlines()
    assert "Python 3.11" in line
    assert not (machine / "venv").exists()
