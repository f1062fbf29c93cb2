"""A decoder that dies, really, of the images that say so. `preprocess.decoder: tests.executor.deadly:decode`."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from pathlib import Path

from PIL import Image

from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.executor import decode as ours

__all__ = ["decode", "held", "once"]

ABORT, EXIT, GROW, HANG, HOLD, KILL, SEGV = b"ABORT", b"EXIT", b"GROW", b"HANG", b"HOLD", b"KILL", b"SEGV"
UNSAYABLE = b"UNSAYABLE"
"""Images, by what they do. HOLD hangs in native code that keeps the interpreter's lock; GROW takes memory and waits for
somebody who kills it for that. UNSAYABLE raises what `except Exception` lets pass, with a text that has no UTF-8."""

_GROWN = 3 << 29
"""Bytes that GROW takes: no machine that runs the tests is short of them."""

_ONCE, _HELD = b"ONCE ", b"HELD "


def held(fifo: Path) -> str:
    """HOLD, which says in a named pipe that it begins."""
    return f"{_HELD.decode()}{fifo}"


def once(marker: Path, image: bytes) -> bytes:
    """An image that kills the process that decodes it first, and no other; `marker` tells."""
    return _ONCE + os.fsencode(marker) + b"\n" + image


def decode(data: bytes | memoryview, spec: PreprocessSpec) -> Image.Image:
    """Our own decoder for everything else."""
    image = bytes(data)
    if image == SEGV:
        ctypes.string_at(0)  # reads address 0
    elif image == ABORT:
        os.abort()
    elif image == KILL:
        os.kill(os.getpid(), signal.SIGKILL)
    elif image == EXIT:
        os._exit(3)
    elif image == UNSAYABLE:
        raise BaseException("\ud800")  # noqa: TRY002 - so it must be
    elif image == GROW:
        taken = [b"x" * (16 << 20) for _ in range(_GROWN >> 24)]
        threading.Event().wait()
        raise AssertionError(len(taken))
    elif image == HANG:
        threading.Event().wait()
    elif image == HOLD:
        ctypes.PyDLL(None).pause()
    elif image.startswith(_HELD):
        Path(os.fsdecode(image.removeprefix(_HELD))).write_text("here")
        ctypes.PyDLL(None).pause()
    elif image.startswith(_ONCE):
        marker, image = image.removeprefix(_ONCE).split(b"\n", 1)
        if not os.path.exists(marker):  # noqa: PTH110 - bytes
            Path(os.fsdecode(marker)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
    return ours.decode(image, spec)
