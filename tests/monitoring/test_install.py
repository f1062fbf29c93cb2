"""install.sh on made-up machines: with everything, with nothing, with apt-get."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.monitoring.servers import FOLDER

TOOLS = ["bash", "cat", "chmod", "env", "rm", "sed", "tee"]
COMMANDS = ["prometheus", "promtool", "prometheus-pushgateway"]


@pytest.fixture
def machine(tmp_path) -> Path:
    """A machine with the shell's tools and nothing else."""
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (tmp_path / "bin" / tool).symlink_to(found)
    return tmp_path


def add_command(machine: Path, name: str, script: str) -> None:
    command = machine / "bin" / name
    command.write_text(f"#!/usr/bin/env bash\n{script}\n")
    command.chmod(0o755)


def install(machine: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": str(machine / "bin"), "POLICY_RC_D": str(machine / "policy-rc.d")}
    command = [FOLDER / "install.sh", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_versions_are_printed_where_everything_is_there(machine):
    for name in COMMANDS:
        add_command(machine, name, f"echo '{name}, version 2.0'; echo more")
    answer = install(machine)
    assert answer.returncode == 0
    assert answer.stdout.splitlines() == [f"{name}, version 2.0" for name in COMMANDS]


@pytest.mark.parametrize("arguments", [(), ("--no-install",)])
def test_what_is_missing_is_one_clear_line(machine, arguments):
    add_command(machine, "promtool", "echo promtool")
    answer = install(machine, *arguments)
    assert (answer.returncode, answer.stdout) == (1, "")
    (line,) = answer.stderr.splitlines()
    assert line.startswith("missing: prometheus prometheus-pushgateway - ")
    assert "apt-get install prometheus prometheus-pushgateway" in line


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may install")
@pytest.mark.parametrize("has_policy", [False, True])
def test_debian_gets_the_packages_and_starts_no_service(machine, has_policy):
    if has_policy:
        (machine / "policy-rc.d").write_text("#!/bin/sh\nexit 7\n")
    made = "; ".join(f"echo 'echo {name}' > {machine}/bin/{name}; chmod 755 {machine}/bin/{name}" for name in COMMANDS)
    script = (
        f'[[ $* == *install* ]] || exit 0\necho "$@" > {machine}/asked\ncat {machine}/policy-rc.d > {machine}/policy\n'
    )
    add_command(machine, "apt-get", script + made)
    answer = install(machine)
    assert (answer.returncode, answer.stdout.split()) == (0, COMMANDS), answer.stderr
    assert "prometheus prometheus-pushgateway" in (machine / "asked").read_text()
    # While packages are unpacked there is a policy: the machine's own, or one that says no and goes again.
    assert (machine / "policy").read_text().endswith("exit 7\n" if has_policy else "exit 101\n")
    assert (machine / "policy-rc.d").exists() is has_policy


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may install")
def test_a_failed_install_leaves_no_policy_and_one_clear_line_last(machine):
    add_command(machine, "apt-get", "exit 100")
    answer = install(machine)
    assert answer.returncode == 1
    assert answer.stderr.splitlines()[-1].startswith("missing: ")
    assert not (machine / "policy-rc.d").exists()
