"""What runs on the executors of the simulated GPU cluster: a model and a decoder that write down where they run.

A package of its own on the executors' PYTHONPATH, with an entry point, as anybody's runtime is.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import threading
from dataclasses import replace

from PIL import Image

from sparkinfer.core.protocols import Device, LoadRequest
from sparkinfer.executor import taskcontext
from sparkinfer.runtimes.fake import FakeRuntime

_threads = int(os.environ.get("GPU_PROBE_THREADS", "1"))
_together = threading.Barrier(_threads)
_calls = itertools.count()


class ProbeRuntime(FakeRuntime):
    """Takes any device, writes down which, and computes on the CPU."""

    def load(self, request: LoadRequest) -> None:
        _record("load", device=str(request.device))
        super().load(replace(request, device=Device("cpu")))


def decode(data: bytes | memoryview, spec: object) -> Image.Image:
    """A process's first images wait for one another: they pass only if so many threads decode at once."""
    if next(_calls) < _threads:
        _together.wait(timeout=60)
        _record("decode", thread=threading.get_ident())
    return Image.open(io.BytesIO(data)).convert("RGB")


def _record(event: str, **facts: object) -> None:
    if "GPU_PROBE_LOG" not in os.environ:
        return
    line = {"event": event, "pid": os.getpid(), "addresses": taskcontext.gpu_addresses(), **facts}
    descriptor = os.open(os.environ["GPU_PROBE_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, json.dumps(line).encode() + b"\n")
    finally:
        os.close(descriptor)
