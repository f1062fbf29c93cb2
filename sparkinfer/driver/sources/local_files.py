"""Image files of the local file system, walked and looked up by Python itself. Driver side; no Spark, no JVM.

Hadoop's local file system forks an `ls` for every file whose status it turns into text: 10 ms each, 4 us here.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from sparkinfer.core.errors import SourceError
from sparkinfer.driver.paths import is_hidden

__all__ = ["FileRow", "look_up", "walk"]

PREFIX = "file:"


class FileRow(NamedTuple):
    """One file.

    Attributes:
        path: qualified: `file:/data/a b.jpg`.
        length: bytes; None where the file cannot be looked at.
        modified: microseconds since 1970; None likewise.
        problem: why it cannot be read, if that is known.
    """

    path: str
    length: int | None
    modified: int | None
    problem: str | None


def walk(folder: str, left_out: Counter[str], *, recursive: bool = True) -> Iterator[FileRow]:
    """Every file below a folder, links followed.

    Args:
        folder: absolute, without scheme.
        left_out: counts what is no row: `hidden`, `hidden folders`, `special`, `link loops`.
        recursive: go into folders inside.

    Raises:
        SourceError: a folder may not be listed.
    """
    pending = [folder]
    while pending:
        current = pending.pop()
        for entry in _entries(current):
            hidden = is_hidden(entry.name)
            if entry.is_dir():
                if hidden:
                    left_out["hidden folders"] += 1
                elif entry.is_symlink() and _is_above(entry.path):
                    left_out["link loops"] += 1
                elif recursive:
                    pending.append(entry.path)
            elif hidden:
                left_out["hidden"] += 1
            elif (row := _row(entry)) is not None:
                yield row
            else:
                left_out["special"] += 1


def look_up(path: str) -> FileRow:
    """What is at a path; nothing there, or no ordinary file, is a row with a `problem`.

    Args:
        path: absolute, without scheme.
    """
    name = PREFIX + path
    try:
        found = os.stat(path)  # noqa: PTH116 - a Path would cost as much again, a million times
    except (OSError, ValueError) as error:
        return FileRow(name, None, None, _reason(error))
    if stat.S_ISDIR(found.st_mode):
        return FileRow(name, None, None, "is a folder")
    if not stat.S_ISREG(found.st_mode):
        return FileRow(name, None, None, "is a pipe, a socket or a device")
    return FileRow(name, found.st_size, found.st_mtime_ns // 1000, None)


def _row(entry: os.DirEntry[str]) -> FileRow | None:
    # Java reads names as UTF-8. One that is not cannot be opened there, but is a row of its own all the same.
    raw = os.fsencode(entry.path)
    name = PREFIX + raw.decode("utf-8", "backslashreplace")
    if os.fsencode(name.removeprefix(PREFIX)) != raw:
        return FileRow(name, None, None, "the name is not UTF-8, so that Java cannot open it")
    try:
        found = entry.stat()
    except OSError as error:  # a dangling link, or deleted since
        return FileRow(name, None, None, _reason(error))
    if not stat.S_ISREG(found.st_mode):
        return None
    return FileRow(name, found.st_size, found.st_mtime_ns // 1000, None)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:  # deleted since its parent was listed
        return []
    except OSError as error:
        raise SourceError(
            f"the folder {folder!r} cannot be listed: {_reason(error)}",
            hint="make it readable, or name the folders beside it in a list",
        ) from error


def _is_above(link: str) -> bool:
    """Whether a link leads back to a folder that it lies in: following it would never end."""
    target, place = os.path.realpath(link), os.path.realpath(os.path.dirname(link))  # noqa: PTH120
    return os.path.commonpath([target, place]) == target


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    return error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)
