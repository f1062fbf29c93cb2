"""What the image's entrypoint runs in a container, found out with stand-ins for tini, Java and spark-submit."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from tests.kubernetes.manifests import ROOT

__all__ = ["ENTRYPOINT", "POD_IP", "environment_of", "stand_in_tini", "what_runs"]

ENTRYPOINT = ROOT / "deploy" / "docker" / "entrypoint.sh"
POD_IP = "10.1.2.3"


def what_runs(arguments: list[str], environment: dict[str, str], folder: Path) -> list[str]:
    """The command that the entrypoint ends in: the program's path below the image's root, and its arguments.

    Raises:
        subprocess.CalledProcessError: it ended with another status than 0.
    """
    stand_ins = {
        "opt/spark/bin/spark-submit": 'printf "%s\\0" "$0" "$@"',
        "jvm/bin/java": 'printf "%s\\0" "$0" "$@"',
    }
    for name, script in stand_ins.items():
        _write_script(folder / name, script)
    image = {
        "PATH": f"{stand_in_tini(folder / 'bin')}:{os.defpath}",
        "SPARK_HOME": str(folder / "opt/spark"),
        "JAVA_HOME": str(folder / "jvm"),
    }
    done = subprocess.run(
        [ENTRYPOINT, *arguments], env=image | environment, capture_output=True, text=True, check=True, timeout=60
    )
    program, *rest = done.stdout.rstrip("\0").split("\0")
    return [program.removeprefix(f"{folder}/"), *(argument.replace(f"{folder}/", "/") for argument in rest)]


def stand_in_tini(folder: Path) -> Path:
    """Makes a `tini` that only runs its command; gives its folder, for PATH."""
    _write_script(folder / "tini", '[[ "$1 $2" == "-s --" ]] && shift 2 && exec "$@"')
    return folder


def environment_of(pod: dict[str, Any]) -> dict[str, str]:
    """The variables that a kubelet would give to a pod's only container."""
    (container,) = pod["spec"]["containers"]
    known = {"status.podIP": POD_IP, "metadata.name": pod["metadata"]["name"]}
    return {
        each["name"]: each["value"] if "valueFrom" not in each else known[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for each in container["env"]
        if "value" in each or "valueFrom" in each
    }


def _write_script(file: Path, script: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/usr/bin/env bash\n{script}\n")
    file.chmod(0o755)
