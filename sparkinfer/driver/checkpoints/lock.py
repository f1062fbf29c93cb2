"""One run at a time on a checkpoint. Driver side.

On this machine's own file system the kernel keeps the lock and lets go when the process dies, however it dies. Other
file systems have no locks, so there the owner writes a sign of life every few seconds, and another run takes over only
when it has seen none for `STALE_SECONDS`, or when the owner was a process of this machine that is gone. A run that was
stopped so long that another has taken over finds out before it commits anything (`Lock.check`).
"""

from __future__ import annotations

import fcntl
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Protocol

from sparkinfer.core.errors import SpecError
from sparkinfer.driver.checkpoints.checkpoint import KEY, Checkpoint, explained_io
from sparkinfer.driver.checkpoints.owner import Owner
from sparkinfer.driver.paths import local_path

__all__ = ["BEAT_SECONDS", "STALE_SECONDS", "Lock", "locked"]

BEAT_SECONDS = 5.0
"""Between two signs of life."""

STALE_SECONDS = 30.0
"""Six signs missed: a full garbage collection or a slow name node takes less."""

_OWNER = "owner.json"


class Lock(Protocol):
    """A lock that is held."""

    def check(self) -> None:
        """Raises SpecError when another run holds the checkpoint by now."""


@contextmanager
def locked(checkpoint: Checkpoint, run_id: str, say: Callable[[str], None]) -> Iterator[Lock]:
    """Holds the checkpoint.

    Args:
        checkpoint: the folder.
        run_id: this run's.
        say: told when there is something to wait for.

    Raises:
        SpecError: another run holds it; says which, since when.
    """
    folder = local_path(checkpoint.folder)
    owner = Owner.this(run_id)
    with _kernel_lock(folder, owner) if folder is not None else _lease(checkpoint, owner, say) as lock:
        yield lock


def _refused(folder: object, owner: Owner | None) -> SpecError:
    return SpecError(
        f"{str(folder)!r} is in use by {owner or 'another run'}",
        key=KEY,
        hint="wait for it or stop it; two jobs at once need checkpoints and outputs of their own",
    )


@contextmanager
def _kernel_lock(folder: Path, owner: Owner) -> Iterator[Lock]:
    with ExitStack() as held:
        with explained_io(str(folder / "lock"), "written"):
            folder.mkdir(parents=True, exist_ok=True)
            # Opened for appending: whoever comes second still reads who was first. Without a buffer, which would be
            # written once more when the file is closed.
            file = held.enter_context((folder / "lock").open("ab+", buffering=0))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise _refused(folder, _parsed(file.read())) from None
            file.truncate(0)
            file.write(json.dumps(owner.content).encode())
        yield _Held()


class _Held:
    """A kernel's lock: nobody can take it away."""

    def check(self) -> None:
        """Nothing to find out."""


def _parsed(text: bytes) -> Owner | None:
    try:
        content = json.loads(text)
    except ValueError:
        return None
    return Owner(content) if isinstance(content, dict) else None


@contextmanager
def _lease(checkpoint: Checkpoint, owner: Owner, say: Callable[[str], None]) -> Iterator[Lock]:
    _wait_for_silence(checkpoint, say)
    lease = _Lease(checkpoint, owner)
    lease.beat()
    # Of two runs that found it free at once, the one that wrote last has it.
    time.sleep(1.0)
    lease.check()
    stop = Event()
    heart = Thread(target=_keep_beating, args=(lease, stop), name="sparkinfer-lease", daemon=True)
    heart.start()
    try:
        yield lease
    finally:
        stop.set()
        heart.join()
        lease.release()


def _wait_for_silence(checkpoint: Checkpoint, say: Callable[[str], None]) -> None:
    """Returns when nobody holds the checkpoint; needs no clock but this machine's own."""
    seen = _holder(checkpoint)
    if seen is None or seen.is_dead:
        return
    say(f"{checkpoint.folder} was last held by {seen}; waiting {STALE_SECONDS:g} s for a sign of life")
    until = time.monotonic() + STALE_SECONDS
    while time.monotonic() < until:
        time.sleep(1.0)
        now = _holder(checkpoint)
        if now is None:
            return
        if now.content != seen.content:
            raise _refused(checkpoint.folder, now)


def _holder(checkpoint: Checkpoint) -> Owner | None:
    if not checkpoint.exists(_OWNER):
        return None
    return Owner(checkpoint.read(_OWNER, remedy="make sure that no run uses the checkpoint, then delete owner.json"))


class _Lease:
    """A lock of signs of life."""

    def __init__(self, checkpoint: Checkpoint, owner: Owner) -> None:
        self._checkpoint = checkpoint
        self._owner = owner
        self._lost = False

    def beat(self) -> None:
        """Writes a sign of life."""
        self._owner.content["beat"] += 1
        self._checkpoint.write(_OWNER, self._owner.content)

    def check(self) -> None:
        """Raises SpecError when another run has taken over."""
        holder = _holder(self._checkpoint)
        if self._lost or holder is None or holder.token != self._owner.token:
            self._lost = True
            raise _refused(self._checkpoint.folder, holder)

    def release(self) -> None:
        """Lets go, unless another run holds it by now."""
        holder = _holder(self._checkpoint)
        if not self._lost and holder is not None and holder.token == self._owner.token:
            self._checkpoint.delete(_OWNER)


def _keep_beating(lease: _Lease, stop: Event) -> None:
    while not stop.wait(BEAT_SECONDS):
        try:
            lease.check()
            lease.beat()
        except SpecError:
            return
        except Exception:  # noqa: BLE001, S112 - the file system may be away for a while; the next beat tries again
            continue
