"""Work that needs a framework, done by a Python process of its own. Driver side; imports no framework.

A native crash costs that process and gives one error message.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sparkinfer
from sparkinfer.core.errors import ModelError
from sparkinfer.executor.inspection import error_from_dict

__all__ = ["environment", "run_helper"]

_STDERR_LINES = 4


def run_helper(module: str, request: bytes, say: Callable[[str], None]) -> dict[str, Any]:
    """Runs `python -m module` and gives its answer.

    Args:
        module: reads the request from stdin; writes one JSON object a line to stdout: `{"progress": text}` any number
            of times, then its answer, or `{"error": ...}` from `executor.inspection.error_to_dict`.
        request: for its stdin.
        say: told about progress, as it comes.

    Returns:
        The last object.

    Raises:
        UserError: the one that the process answered; ModelError when it died.
    """
    answer: dict[str, Any] = {}
    stage = "it started"
    with tempfile.TemporaryFile() as stderr:
        with subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=environment(),
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                _write(process.stdin, request)
                for line in process.stdout:
                    answer = json.loads(line)
                    if "progress" in answer:
                        stage = answer["progress"]
                        say(stage)
            except BaseException:
                process.kill()
                raise
        if process.returncode != 0:
            stderr.seek(0)
            raise _failure(module, stage, process.returncode, stderr.read().decode("utf-8", errors="replace"))
    if "error" in answer:
        raise error_from_dict(answer["error"])
    return answer


def environment() -> dict[str, str]:
    """This process's environment, with this package importable, no GPU, and a traceback on native crashes."""
    # The package may be a folder, or lie in a zip that spark-submit added to sys.path alone.
    home = str(Path(sparkinfer.__file__).parent.parent)
    search = [home, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(search),
        "PYTHONFAULTHANDLER": "1",
        "CUDA_VISIBLE_DEVICES": "",
    }


def _write(stdin: Any, request: bytes) -> None:
    """A process that died before it read says so by its exit status."""
    try:
        with stdin:
            stdin.write(request)
    except BrokenPipeError:
        pass


def _failure(module: str, stage: str, status: int, stderr: str) -> ModelError:
    lines = stderr.strip().splitlines()
    if status < 0:
        said = f"it was ended by {signal.Signals(-status).name} after {stage!r}"
        hint = "the file is damaged, its framework has a fault, or there is too little memory"
    else:
        said = " | ".join(line.strip() for line in lines[-_STDERR_LINES:])
        hint = None
    return ModelError(f"{module} failed with exit status {status}: {said}", key="model.path", hint=hint)
