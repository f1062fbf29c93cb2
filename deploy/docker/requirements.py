"""Prints what the project needs, one requirement a line: `requirements.py onnx,torch`, beside pyproject.toml.

The image installs these before the project, so that a change of code keeps the layer with the packages.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

if __name__ == "__main__":
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = list(project["dependencies"])
    for extra in sys.argv[1].split(","):
        if extra not in project["optional-dependencies"]:
            known = ", ".join(sorted(project["optional-dependencies"]))
            sys.exit(f"no extra named {extra!r}; there are: {known}")
        wanted += project["optional-dependencies"][extra]
    print(*wanted, sep="\n")
