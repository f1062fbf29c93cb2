"""Where the seconds go from the start of `sparkinfer run` to the first prediction.

    python -m tests.benchmarks.startup [--rounds 5]

Runs the command `--rounds` times on the demo's photographs and prints, for every stage, when it ended: seconds since
the launch of the process, medians. The first image's decoding in a Python worker is told by a plug-in decoder.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from PIL import Image

DEMO = Path("build/demo")
MARKS = "SPARKINFER_STARTUP_MARKS"

STAGES = (
    ("sparkinfer.driver.job", "run_job", "start", "Python started, job file checked"),
    ("sparkinfer.driver.job", "get_session", "start", "model inspected"),
    ("sparkinfer.driver.job", "get_session", "end", "Java and Spark started"),
    ("sparkinfer.driver.job", "read_source", "end", "images listed"),
    ("sparkinfer.driver.job", "predict_into", "start", "cut into tasks"),
)
"""Module, function, whether its start or its end counts, and what is done by then."""


def decode(data: Any, spec: Any) -> Image.Image:
    """sparkinfer's own decoding; the first image of a worker leaves a mark."""
    from sparkinfer.executor.decode import decode as own

    _mark("first image in a Python worker")
    return own(data, spec)


def _mark(stage: str) -> None:
    with Path(os.environ[MARKS]).open("a", encoding="utf-8") as file:
        file.write(json.dumps([stage, time.time()]) + "\n")


def _told(function: Callable[..., Any], moment: str, stage: str) -> Callable[..., Any]:
    def around(*args: Any, **kwargs: Any) -> Any:
        if moment == "start":
            _mark(stage)
        result = function(*args, **kwargs)
        if moment == "end":
            _mark(stage)
        return result

    return around


def _child(output: str) -> int:
    from sparkinfer.cli import main as run

    for module, name, moment, stage in STAGES:
        holder = importlib.import_module(module)
        setattr(holder, name, _told(getattr(holder, name), moment, stage))
    model, labels = str(DEMO / "efficientnet_lite0.onnx"), str(DEMO / "labels.txt")
    flags = ["--images", str(DEMO / "images"), "--model", model, "--labels", labels, "--output", output]
    return run(["run", *flags, "--set", "preprocess={decoder: tests.benchmarks.startup:decode}", "--quiet"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(prog="tests.benchmarks.startup")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        return _child(options.child)
    ends: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory(prefix="sparkinfer-") as folder:
            marks = Path(folder) / "marks"
            environment = {**os.environ, MARKS: str(marks), "PYTHONPATH": str(Path.cwd())}
            launched = time.time()
            command = [sys.executable, "-m", "tests.benchmarks.startup", "--child", f"{folder}/out"]
            subprocess.run(command, check=True, env=environment)
            seen: dict[str, float] = {}
            for stage, moment in map(json.loads, marks.read_text("utf-8").splitlines()):
                seen.setdefault(stage, moment - launched)
            seen["table written, process ended"] = time.time() - launched
            for stage, seconds in seen.items():
                ends.setdefault(stage, []).append(seconds)
    before = 0.0
    print("| by then | s since launch | s of its own |\n| --- | --- | --- |")
    for stage, moments in ends.items():
        print(f"| {stage} | {median(moments):.1f} | {median(moments) - before:.1f} |")
        before = median(moments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
