"""One model per node: a copy of an ONNX model whose weights all processes of a node share. Executor side, CPU only.

ONNX Runtime rearranges weights for the CPU when it opens a model, and each process keeps a rearranged copy for itself:
four workers hold a 500 MB model four times, whether or not it is memory-mapped. So one process does that work once and
saves the result; the others map it. Measured by tests/benchmarks/pss.py with ONNX Runtime 1.31: growth of the PSS of 4
workers in model sizes, milliseconds an image:

| 500 MB of           | opened as it is  | mapped, no prepacking   | shared copy      |
|---------------------|------------------|-------------------------|------------------|
| Gemm, 4 images      | 4.00 - 9.0 ms    | 1.03 - 1.7 times slower | 1.00 - 6.9 ms    |
| Conv, 4 images      | 4.13 - 143 ms    | 4.01 - the same         | 1.06 - 139 ms    |

Outputs are equal to the last bit. The copy holds ONNX Runtime's own layout for this processor and this version of it,
so it is named after both and never leaves the node.

File format: the weights as ONNX Runtime saves them, the graph that refers to them by this file's name, the graph's
length in 8 bytes (little endian), and `MAGIC`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import secrets
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from sparkinfer.core.errors import ModelError
from sparkinfer.runtimes._batches import Array

__all__ = ["SHARE_ABOVE_BYTES", "make_shareable", "open_shared", "shared_name"]

SHARE_ABOVE_BYTES = 32 << 20
"""Model size from which a shared copy is worth its disk space. Making one takes as long as opening the model (0.1 s for
efficientnet-lite0, 5 to 10 s for 500 MB) and up to twice the model's size on disk."""

MAGIC = b"SPKSHAR1"
_LENGTH_BYTES = 8
_SMALLEST_EXTERNAL = 1024
"""Bytes; smaller weights stay in the graph."""
_TOLERANCE = 1e-5
"""Largest relative difference between original and copy that passes; it is 0 in every case seen."""


def shared_name(digest: str) -> str:
    """File name of the shared copy of a model on this machine: another processor or ONNX Runtime has another."""
    machine = hashlib.sha256(f"{platform.machine()} {_processor()}".encode()).hexdigest()[:8]
    return f"{digest}-ort{ort.__version__}-{machine}.shared"


def make_shareable(source: Path, target: Path, batch: Array) -> None:
    """Writes the shared copy, unless it is there. Of several processes that ask at once, one works and the rest wait.

    Args:
        source: an `.onnx` file with one input.
        target: in a folder that only this user can write, named by `shared_name`. A `.lock` file stays beside it.
        batch: input array of the right dtype and shape; where the model fixes a dimension, that one counts. Its
            values are not used. Original and copy are compared on noise.

    Raises:
        ModelError: the model does not open, or the copy answers otherwise; nothing is left behind.
    """
    if target.exists():
        return
    with _locked(target.with_name(f"{target.name}.lock")):
        if target.exists():
            return
        # Weights and graph refer to each other by file name, so the name to write under is as long as the final one.
        partial = target.with_name(secrets.token_hex(len(target.name))[: len(target.name)])
        try:
            expected = _save(source, partial, batch)
            _check(partial, batch, expected)
            _rename(partial, target)
        finally:
            partial.unlink(missing_ok=True)


def open_shared(path: Path, options: ort.SessionOptions) -> ort.InferenceSession:
    """Opens a shared copy on the CPU: the weights are mapped, not read.

    Args:
        path: from `make_shareable`.
        options: threads, logging and the like, for this session alone: optimisation is switched off in them, because
            it has been done.

    Returns:
        The session. As long as it lives it holds a shared lock (`flock`) on the file, which tells that it is in use.

    Raises:
        ModelError: the file is no shared copy, or is gone.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        raise ModelError(f"the shared copy of the model cannot be opened: {error}", key="model.path") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        session = _open(path, options)
    except BaseException:
        os.close(descriptor)
        raise
    weakref.finalize(session, os.close, descriptor)
    return session


def _open(path: Path, options: ort.SessionOptions) -> ort.InferenceSession:
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent.resolve()))
    return ort.InferenceSession(_graph(path), options, providers=["CPUExecutionProvider"])


def _save(source: Path, partial: Path, batch: Array) -> list[Array]:
    """Optimises for this processor, saves, and gives the original's outputs on noise."""
    graph_file = partial.with_name(f"{partial.name}.graph")
    options = _quiet_options()
    options.optimized_model_filepath = str(graph_file)
    for entry, value in (
        ("optimized_model_external_initializers_file_name", partial.name),
        ("optimized_model_external_initializers_min_size_in_bytes", str(_SMALLEST_EXTERNAL)),
        ("save_external_prepacked_constant_initializers", "1"),
    ):
        options.add_session_config_entry(f"session.{entry}", value)
    try:
        session = ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
        graph = graph_file.read_bytes()
    except Exception as error:
        raise ModelError(f"ONNX Runtime cannot open the model: {error}", key="model.path") from error
    finally:
        graph_file.unlink(missing_ok=True)
    with partial.open("ab") as file:  # a model of small weights alone leaves no file to append to
        file.write(graph + len(graph).to_bytes(_LENGTH_BYTES, "little") + MAGIC)
    return _run(session, batch)


def _rename(partial: Path, target: Path) -> None:
    """Gives the file its final name, in the graph and then in the folder."""
    graph = _graph(partial)
    with partial.open("r+b") as file:
        file.seek(-_LENGTH_BYTES - len(MAGIC) - len(graph), os.SEEK_END)
        file.write(graph.replace(partial.name.encode(), target.name.encode()))
    partial.replace(target)


def _check(partial: Path, batch: Array, expected: list[Array]) -> None:
    found = _run(_open(partial, _quiet_options()), batch)
    for one, other in zip(expected, found, strict=True):
        if not np.allclose(one, other, rtol=_TOLERANCE, atol=_TOLERANCE * float(np.abs(one).max(initial=0))):
            raise ModelError(
                "the copy that this node's processes would share answers otherwise than the model itself",
                key="model.path",
                hint=f"a fault of ONNX Runtime {ort.__version__}: run without sharing",
            )


def _graph(path: Path) -> bytes:
    tail = _LENGTH_BYTES + len(MAGIC)
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - tail))
        end = file.read(tail)
        length = int.from_bytes(end[:_LENGTH_BYTES], "little")
        if not end.endswith(MAGIC) or length > size - tail:
            raise ModelError(f"{str(path)!r} is no shared copy of a model", key="model.path", hint="remove it")
        file.seek(size - tail - length)
        return file.read(length)


def _run(session: ort.InferenceSession, batch: Array) -> list[Array]:
    image = session.get_inputs()[0]
    sides = zip(image.shape, batch.shape, strict=True)
    shape = [declared if isinstance(declared, int) else given for declared, given in sides]
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, shape) if batch.dtype == np.uint8 else rng.normal(size=shape)
    outputs: list[Array] = session.run(None, {image.name: noise.astype(batch.dtype)})
    return outputs


def _quiet_options() -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    options.enable_cpu_mem_arena = False  # this memory goes back to the system
    return options


def _processor() -> str:
    """What ONNX Runtime chooses its layouts by: the processor's instruction sets."""
    try:
        lines = Path("/proc/cpuinfo").read_text("ascii", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """An exclusive lock that the kernel frees when its holder dies."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
