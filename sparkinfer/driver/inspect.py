"""Asks a process of its own what a model file is. Driver side.

No framework is imported here, and a model that crashes its framework costs one process and gives one error message.
"""

from __future__ import annotations

import functools
import json
import logging
import signal
import subprocess
import sys
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from sparkinfer.core.errors import ModelError
from sparkinfer.core.model_spec import ModelSpec, PostprocessSpec, Signature
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.core.protocols import Device, Folding
from sparkinfer.core.secrets import redacted
from sparkinfer.driver.helper_process import environment
from sparkinfer.executor.inspection import error_from_dict

__all__ = ["Inspection", "check_providers", "inspect"]

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 300.0
"""Long enough to read some ten GB from a slow disk and run two images on one core."""
_STDERR_LINES = 4


class Inspection(NamedTuple):
    """What a model says of itself; the preprocess block without a weights enum; what travels to the executors."""

    signature: Signature
    preprocess: PreprocessSpec
    folding: Folding


def inspect(
    path: str,
    spec: ModelSpec,
    preprocess: PreprocessSpec,
    postprocess: PostprocessSpec,
    *,
    scratch: Path | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Inspection:
    """Opens a model on the CPU of this machine and checks it against the spec.

    Args:
        path: local file.
        spec: with its format resolved.
        preprocess: what the inputs will look like; a weights enum is resolved on the way.
        postprocess: names the embedding, if one is wanted.
        scratch: folder for the file that travels, where it is not the model's own; None leaves everything as it is.
        timeout_seconds: for opening the model and running two images.

    Raises:
        UserError: the model is damaged, of another format, does not fit the spec, crashes its runtime or takes too
            long; or its framework is not installed.
    """
    request = {
        "path": path,
        "model": spec.model_dump(mode="json"),
        "preprocess": preprocess.model_dump(mode="json", exclude_unset=True),
        "embedding": postprocess.embedding,
        "scratch": scratch and str(scratch),
    }
    answer = _ask(request, spec, timeout_seconds)
    if "error" in answer:
        raise error_from_dict(answer["error"])
    folding = answer["folding"]
    return Inspection(
        Signature.model_validate(answer["signature"]),
        PreprocessSpec.model_validate(answer["preprocess"]),
        Folding(
            path=folding["path"],
            preprocess=PreprocessSpec.model_validate(folding["preprocess"]),
            inside=folding["inside"] and PreprocessSpec.model_validate(folding["inside"]),
        ),
    )


def check_providers(spec: ModelSpec, device: Device) -> None:
    """Asks this machine's ONNX Runtime for `model.providers`: for executors that run here. Other formats have none.

    Args:
        spec: of a model of any format.
        device: what the executors will use.

    Raises:
        DeviceError: it lacks one.
        MissingExtraError: it is not installed.
    """
    if spec.providers and spec.format in {"onnx", "auto"} and PurePath(spec.path).suffix.lower() == ".onnx":
        _ask_for_providers(spec.providers, device)


@functools.cache
def _ask_for_providers(providers: tuple[str, ...], device: Device) -> None:
    request = {"providers": providers, "kind": device.kind, "index": device.index}
    answer = _ask(request, ModelSpec(path="onnxruntime", format="onnx"), TIMEOUT_SECONDS)
    if "error" in answer:
        raise error_from_dict(answer["error"])


def _ask(request: dict[str, Any], spec: ModelSpec, timeout_seconds: float) -> dict[str, Any]:
    try:
        done = subprocess.run(
            [sys.executable, "-m", "sparkinfer.executor.inspection"],
            input=json.dumps(request).encode(),
            capture_output=True,
            timeout=timeout_seconds,
            env=environment(),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ModelError(
            f"{spec.path!r} did not open and run two images within {timeout_seconds:g} s",
            key="model.path",
            hint="try the model by itself; is its disk slow?",
        ) from error
    stderr = done.stderr.decode("utf-8", errors="replace").strip()
    if stderr:
        log.info("inspection of %s said:\n%s", redacted(spec.path), redacted(stderr))
    if done.returncode == 0:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer
    raise _failure(spec, done.returncode, stderr)


def _failure(spec: ModelSpec, status: int, stderr: str) -> ModelError:
    said = " | ".join(line.strip() for line in stderr.splitlines()[-_STDERR_LINES:])
    if status < 0:
        name = signal.Signals(-status).name
        first = next(iter(stderr.splitlines()), "")
        return ModelError(
            f"{spec.path!r} crashed the {spec.format} runtime ({name}{': ' + first if first else ''})",
            key="model.path",
            hint="the file is damaged, or needs more memory than there is: export it again and try it by itself",
        )
    return ModelError(f"{spec.path!r} could not be inspected (exit status {status}): {said}", key="model.path")
