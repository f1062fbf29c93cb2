"""Who holds something: a process of some machine. Driver side."""

from __future__ import annotations

import os
import socket
import time
import uuid
from pathlib import Path
from typing import Any

__all__ = ["Owner"]


class Owner:
    """A run, by its process.

    Args:
        content: as `this` made it, here or elsewhere; goes into a JSON file.
    """

    def __init__(self, content: dict[str, Any]) -> None:
        self.content = content

    @classmethod
    def this(cls, run_id: str) -> Owner:
        """This process."""
        return cls(
            {
                "run_id": run_id,
                "host": socket.gethostname(),
                "pid": os.getpid(),
                "process_started": _started(os.getpid()),
                "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "token": uuid.uuid4().hex,
                "beat": 0,
            }
        )

    @property
    def token(self) -> str:
        """Another one for every owner."""
        return str(self.content.get("token"))

    @property
    def is_here(self) -> bool:
        """Whether it is, or was, a process of this machine."""
        return self.content.get("host") == socket.gethostname()

    @property
    def is_dead(self) -> bool:
        """Whether it was a process of this machine that is gone; False where that cannot be known."""
        return self.is_here and _started(int(self.content.get("pid", 0))) != self.content.get("process_started")

    def __str__(self) -> str:
        get = self.content.get
        return f"run {get('run_id')} (process {get('pid')} on {get('host')}, since {get('since')})"


def _started(pid: int) -> str | None:
    """When a process started, in the kernel's ticks since boot: process ids are used again. None: there is none."""
    try:
        # The name in brackets may hold anything; field 22 of proc(5) is the 20th after it.
        return Path(f"/proc/{pid}/stat").read_text("utf-8", errors="replace").rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        return None
