"""Facts of the machine and of what is installed, for the report's reader."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from datetime import UTC, datetime
from pathlib import Path

__all__ = ["cores", "machine_facts", "versions"]

_ASK_VERSIONS = """
import importlib.metadata, sys
for name in sys.argv[1:]:
    try:
        print(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        print(name, "missing")
"""


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def machine_facts() -> dict[str, str]:
    """The machine, by name of the fact."""
    kib = int(_first(r"MemTotal:\s*(\d+)", Path("/proc/meminfo")))
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        "CPU": _first(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo")),
        "cores": str(cores()),
        "memory": f"{kib / 1024**2:.1f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
        "Java": _java(),
        "load before the start": f"{os.getloadavg()[0]:.2f}",
    }


def versions(python: Path, packages: list[str]) -> dict[str, str]:
    """Installed versions in another environment, by distribution; `missing` where there is none."""
    answer = subprocess.run([python, "-c", _ASK_VERSIONS, *packages], capture_output=True, text=True, check=True)
    return dict(line.split(" ", 1) for line in answer.stdout.splitlines())


def _first(pattern: str, path: Path) -> str:
    found = re.search(pattern, path.read_text("utf-8"))
    return found.group(1).strip() if found else "unknown"


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else "java"
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError:
        return "not found"
    found = re.search(r'version "([^"]+)"', answer.stderr)
    return found.group(1) if found else "unknown"
