"""A JVM that starts in half the time: Spark's classes from an archive of an earlier run. Driver side.

Starting Spark is loading thousands of classes. Java can keep them parsed and verified in a file and map it
(application class-data sharing, JEP 350, Java 13 and later). The first run on a machine leaves such a file (some 190
MB) when its JVM ends, without anybody waiting for it; later runs use it. Measured on 2 busy cores: session 17.8 to
6.9 s, first job 8.0 to 2.1 s. Java itself checks that the file fits its version and class path, and starts without it
where it does not.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from pathlib import Path

import pyspark

__all__ = ["archive_options"]

_SETTLED_SECONDS = 60.0
"""An archive untouched for so long is whole: its JVM wrote it in a few seconds, at its end."""

_CLAIM_SECONDS = 24 * 3600.0
"""A run that has left nothing for so long never will: another may try."""

_QUIET = "-Xshare:auto -Xlog:disable -Xlog:all=error:stderr"
"""Not a word about classes that cannot be archived, nor about an archive that does not fit."""


def archive_options(java_home: Path, folder: Path | None = None, *, now: float | None = None) -> str:
    """Java options that use this machine's archive, or that leave one for the next run.

    Args:
        java_home: of the Java that will run.
        folder: private to the user; `$XDG_CACHE_HOME/sparkinfer` or `~/.cache/sparkinfer` by default.
        now: seconds since 1970, for tests.

    Returns:
        Options, or nothing where no private folder can be had, or while another run is about to leave an archive.
    """
    folder = _cache_home() / "sparkinfer" if folder is None else folder
    if not _is_private(folder):
        return ""
    archive = folder / f"spark-{pyspark.__version__}-{_key(java_home)}.jsa"
    if not archive.exists():
        _adopt(archive, time.time() if now is None else now)
    if archive.exists():
        if not _is_own_file(archive):
            return ""
        return f"-XX:SharedArchiveFile={archive} {_QUIET}"
    if not _claim(archive.with_suffix(".claim"), time.time() if now is None else now):
        return ""
    # Written under a name of its own: a JVM that starts meanwhile must not map half a file.
    return f"-XX:ArchiveClassesAtExit={archive.with_suffix(f'.{os.getpid()}.new')} {_QUIET}"


def _cache_home() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _is_private(folder: Path) -> bool:
    """Makes the folder; false when it is not the user's own, others may enter it, or options could not name it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    own = found.st_uid == os.getuid() and not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
    return own and stat.S_ISDIR(found.st_mode) and not any(c.isspace() or c in "'\"" for c in str(folder))


def _is_own_file(path: Path) -> bool:
    """No link and nobody else's: Java maps the classes in it without looking at them again."""
    found = path.lstat()
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid()


def _key(java_home: Path) -> str:
    """An archive fits one Java and one class path: the environment that Spark's jars lie in."""
    release = java_home / "release"
    text = release.read_bytes() if release.is_file() else b""
    places = f"{java_home.resolve()}\n{Path(pyspark.__file__).parent}\n"
    return hashlib.sha256(places.encode() + text).hexdigest()[:12]


def _claim(claim: Path, now: float) -> bool:
    """Whether this run shall leave the archive; one at a time, since writing it keeps a core busy for seconds."""
    try:
        if now - claim.stat().st_mtime < _CLAIM_SECONDS:
            return False
        claim.unlink()
    except FileNotFoundError:
        pass
    try:
        claim.touch(mode=0o600, exist_ok=False)
    except OSError:
        return False
    return True


def _adopt(archive: Path, now: float) -> None:
    """Gives a finished archive of an earlier run its final name, and removes the others."""
    own = (path for path in archive.parent.glob(f"{archive.stem}.*.new") if _is_own_file(path))
    left = sorted(own, key=lambda path: path.stat().st_mtime)
    finished = [path for path in left if now - path.stat().st_mtime > _SETTLED_SECONDS and path.stat().st_size]
    for path in finished[:-1]:
        path.unlink(missing_ok=True)
    if finished:
        finished[-1].replace(archive)
