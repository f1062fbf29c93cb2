"""Builds the project's wheel for a Databricks cluster: `python3 build_wheel.py FOLDER`. Standard library and pip.

The runtime brings its own pyspark. A wheel that asks for pyspark would have pip put the public one beside it, so the
request is left out of the wheel's metadata, and nothing else is changed.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

__all__ = ["build", "without_pyspark"]

PROJECT = Path(__file__).resolve().parents[2]
_REQUEST = re.compile(rb"^Requires-Dist: pyspark\b.*\n", re.MULTILINE)


def build(target: Path) -> Path:
    """Builds the wheel into `target`, in place of older ones of the project.

    Returns:
        The wheel.
    """
    target.mkdir(parents=True, exist_ok=True)
    for old in target.glob("sparkinfer-*.whl"):
        old.unlink()
    shutil.rmtree(PROJECT / "build" / "lib", ignore_errors=True)  # modules that are gone would come along
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, str(PROJECT)]
        subprocess.run(command, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        return without_pyspark(wheel, target / wheel.name)


def without_pyspark(wheel: Path, target: Path) -> Path:
    """Copies a wheel without its request for pyspark."""
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        changed: dict[str, bytes] = {}
        for item in old.infolist():  # RECORD comes last
            content = old.read(item)
            if item.filename.endswith(".dist-info/METADATA"):
                content = changed[item.filename] = _REQUEST.sub(b"", content)
            elif item.filename.endswith(".dist-info/RECORD"):
                content = _record(content, changed)
            new.writestr(item, content)
    return target


def _record(content: bytes, changed: dict[str, bytes]) -> bytes:
    """The list of a wheel's files with the digests and sizes of those that have changed."""
    lines = io.StringIO(newline="")
    writer = csv.writer(lines, lineterminator="\n")
    for name, digest, size in csv.reader(io.StringIO(content.decode())):
        if name in changed:
            new = base64.urlsafe_b64encode(hashlib.sha256(changed[name]).digest()).rstrip(b"=").decode()
            writer.writerow([name, f"sha256={new}", len(changed[name])])
        else:
            writer.writerow([name, digest, size])
    return lines.getvalue().encode()


if __name__ == "__main__":
    print(build(Path(sys.argv[1])))
