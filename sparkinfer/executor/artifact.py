"""The model file on a node: one verified copy, named by its digest, opened in place by every process of the user.

Executor side; free of Spark. Nothing here pickles. The copies lie in a private folder (owner only):
`$SPARKINFER_CACHE`, or `<temporary folder>/sparkinfer-<uid>/models`.

How processes keep out of each other's way:

- A copy is written under the folder's lock, to a temporary name, and renamed once its digest is right. So a file
  under its final name is whole, and a file with a temporary name, found under the lock, is what a killed process left.
- A process that uses a copy holds a shared lock on the file for as long as it lives. Eviction removes only files that
  it can lock alone, so never one in use.
- Nothing is trusted because of its name: links are refused, and every process verifies size and digest once.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sparkinfer.core.errors import ModelError
from sparkinfer.core.model_spec import Artifact

__all__ = ["CACHE_VARIABLE", "DEFAULT_LIMIT_BYTES", "cache_folder", "materialise", "release"]

log = logging.getLogger(__name__)

CACHE_VARIABLE = "SPARKINFER_CACHE"
DEFAULT_LIMIT_BYTES = 16 << 30
"""Bytes of copies that the folder may hold before the least recently used ones go."""

_LOCK_NAME = ".lock"
_TEMPORARY_PREFIX = ".partial-"
_CHUNK_BYTES = 1 << 20

_in_use: dict[Path, int] = {}
"""Verified copies of this process, and the descriptor that holds each one's shared lock."""
_in_use_lock = threading.RLock()


def cache_folder() -> Path:
    """Where this user's copies lie on this node."""
    return _private_folders()[-1]


def _private_folders() -> list[Path]:
    """The cache folder last; before it the folders above that must be private too."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return [Path(chosen)]
    # The temporary folder is everyone's: the user's own folder in it must be safe, or another could exchange what it
    # holds.
    own = Path(tempfile.gettempdir()) / f"sparkinfer-{os.geteuid()}"
    return [own, own / "models"]


def materialise(
    artifact: Artifact, fetch: Callable[[], bytes | Path], *, limit_bytes: int = DEFAULT_LIMIT_BYTES
) -> Path:
    """A local file with the artifact's bytes, which stays in place while this process lives.

    Args:
        artifact: digest, size and suffix.
        fetch: gives the bytes, or a file that holds them; called only when the node has no sound copy.
        limit_bytes: of the folder; copies in use may exceed it.

    Raises:
        ModelError: the bytes are not the artifact's, or the folder is not private, or is full.
    """
    folder = cache_folder()
    path = folder / artifact.file_name
    with _in_use_lock:
        if path in _in_use and _is_still(path, _in_use[path]):
            return path
        release(path)
        folder_descriptor = _open_cache()
        try:
            descriptor = _open_sound(folder_descriptor, artifact)
            if descriptor is None:
                descriptor = _write(folder_descriptor, artifact, fetch, limit_bytes)
        finally:
            os.close(folder_descriptor)
        _in_use[path] = descriptor
    return path


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether the file that was verified still has its name: it was neither evicted nor exchanged."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))


def release(path: Path) -> None:
    """Says that this process no longer uses a copy, so that it may be evicted. Unknown paths are ignored."""
    with _in_use_lock:
        descriptor = _in_use.pop(path, None)
        if descriptor is not None:
            os.close(descriptor)


def _open_cache() -> int:
    """A descriptor of the cache folder, which is made if need be."""
    *above, folder = _private_folders()
    for parent in above:
        os.close(_open_private(parent))
    return _open_private(folder)


def _open_private(folder: Path) -> int:
    """A descriptor of the folder, made if need be, once it is sure that nobody else can write into it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        raise _unusable(folder, str(error)) from error
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or found.st_mode & 0o077:
        os.close(descriptor)
        mode = stat.S_IMODE(found.st_mode)
        raise _unusable(folder, f"it must be private, but belongs to uid {found.st_uid} with mode {mode:04o}")
    return descriptor


def _unusable(folder: Path, reason: str) -> ModelError:
    return ModelError(
        f"the model cache {str(folder)!r} cannot be used: {reason}",
        key=CACHE_VARIABLE,
        hint=f"set {CACHE_VARIABLE} to a folder that only this user can enter (chmod 700), on a disk with room",
    )


def _open_sound(folder: int, artifact: Artifact) -> int | None:
    """A descriptor of the copy with a shared lock on it, or None when it is missing, damaged or being evicted."""
    try:
        descriptor = os.open(artifact.file_name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise ModelError(
            f"{artifact.file_name!r} in the model cache is a link, which nobody but an intruder puts there",
            key=CACHE_VARIABLE,
            hint="find out who made it, then remove it",
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if _is_sound(descriptor, artifact):
            with contextlib.suppress(PermissionError):
                os.utime(descriptor)  # its modification time is when it was last taken into use
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _is_sound(descriptor: int, artifact: Artifact) -> bool:
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_size != artifact.size:
        return False
    if found.st_nlink == 0:  # evicted or replaced between open and lock
        return False
    with open(descriptor, "rb", closefd=False) as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == artifact.digest


def _write(folder: int, artifact: Artifact, fetch: Callable[[], bytes | Path], limit_bytes: int) -> int:
    """Fetches, verifies and places the copy; gives a descriptor with a shared lock on it."""
    with _locked(folder):
        descriptor = _open_sound(folder, artifact)  # another process may have been first
        if descriptor is not None:
            return descriptor
        _make_room(folder, artifact, limit_bytes)
        temporary = f"{_TEMPORARY_PREFIX}{artifact.digest}"
        source = fetch()
        try:
            _copy(source, folder, temporary, artifact)
            os.rename(temporary, artifact.file_name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            raise _unusable(cache_folder(), f"{error} (writing {artifact.size} bytes)") from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
        descriptor = _open_sound(folder, artifact)
    if descriptor is None:
        raise _unusable(cache_folder(), f"{artifact.file_name!r} does not keep what is written to it")
    return descriptor


def _copy(source: bytes | Path, folder: int, name: str, artifact: Artifact) -> None:
    """Writes the source's bytes to a new file, and refuses them when they are not the artifact's."""
    digest = hashlib.sha256()
    size = 0
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "wb") as file:
        for chunk in _chunks(source):
            digest.update(chunk)
            size += len(chunk)
            file.write(chunk)
    if (digest.hexdigest(), size) != (artifact.digest, artifact.size):
        raise ModelError(
            f"the model arrived as {size} bytes with SHA-256 {digest.hexdigest()}, "
            f"but the driver sent {artifact.size} bytes with {artifact.digest}",
            key="model.path",
            hint="the file changed or was damaged on its way: start the job again",
        )


def _chunks(source: bytes | Path) -> Iterator[bytes | memoryview]:
    if isinstance(source, Path):
        with source.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk
    else:
        yield memoryview(source)


@contextmanager
def _locked(folder: int) -> Iterator[None]:
    """The folder's lock: one writer or evictor at a time. The kernel frees it when its holder dies."""
    try:
        descriptor = os.open(_LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    except OSError as error:
        raise _unusable(cache_folder(), f"its lock file: {error}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _make_room(folder: int, artifact: Artifact, limit_bytes: int) -> None:
    """Under the lock: removes leftovers of killed writers, then the least recently used copies that nobody uses."""
    copies = []
    for name in os.listdir(folder):
        if name.startswith(_TEMPORARY_PREFIX):
            os.unlink(name, dir_fd=folder)
        elif name not in (_LOCK_NAME, artifact.file_name):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            copies.append((found.st_mtime_ns, name, found.st_size))
    total = artifact.size + sum(size for _, _, size in copies)
    for _, name, size in sorted(copies):
        if total <= limit_bytes:
            return
        if _evict(folder, name):
            log.info("evicted model %s (%d bytes) from the node's cache", name, size)
            total -= size
    if total > limit_bytes:
        log.warning("the node's model cache holds %d bytes in use, above its limit of %d", total, limit_bytes)


def _evict(folder: int, name: str) -> bool:
    """Removes a copy unless some process holds it."""
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(name, dir_fd=folder)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
