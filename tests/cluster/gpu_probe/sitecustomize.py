"""Gives every Python process of the simulated cluster the GPUs whose device nodes lie below `GPU_PROBE_ROOT`."""

from __future__ import annotations

import functools
import os
from pathlib import Path

if os.environ.get("GPU_PROBE_ROOT"):
    from sparkinfer.executor import device

    device.read_gpu_facts = functools.partial(device.read_gpu_facts, Path(os.environ["GPU_PROBE_ROOT"]))
