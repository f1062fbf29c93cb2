"""What a path means to Hadoop and to Spark, as plain text work: no JVM, no I/O. Driver side.

A *qualified* path is what `org.apache.hadoop.fs.Path.toString` gives for a path with scheme and authority: decoded
(spaces and per cent signs as they are) and normalised, such as `file:/data/a b.jpg` or `hdfs://nn:8020/x/100%.jpg`.
It is what Spark's binaryFile source puts into its `path` column, hence our join key.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

__all__ = ["Root", "has_glob", "is_hidden", "literal", "local_path", "parse", "qualify", "unusable", "url"]

_GLOB = re.compile(r"[*?\[{]")
_SLASHES = re.compile("/{2,}")

_HADOOP_IS_HERE = ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_YARN_STAGING_DIR")
"""Variables of which one is set where Java has a Hadoop configuration. The last one is set for the driver in YARN's
cluster mode, whose configuration comes with the job."""

_URL_SAFE = "/!$&'()*+,;=:@~-._"
"""Characters that may stand as they are in the path of a URI (RFC 3986, section 3.3), and the slash."""


class Root(NamedTuple):
    """One file system.

    Attributes:
        prefix: `scheme:` or `scheme://authority`.
        working_folder: absolute path, without the prefix, at which relative paths start.
    """

    prefix: str
    working_folder: str


def parse(text: str) -> tuple[str | None, str | None, str]:
    """Splits a path as `org.apache.hadoop.fs.Path(String)` does: no escapes, `?` and `#` are ordinary characters.

    Returns:
        Scheme, authority, normalised path.

    Raises:
        ValueError: Hadoop takes no such path; says why.
    """
    if not text:
        raise ValueError("the path is empty")
    scheme = authority = None
    rest = text
    colon, slash = text.find(":"), text.find("/")
    if colon != -1 and (slash == -1 or colon < slash):
        scheme, rest = text[:colon], text[colon + 1 :]
    if rest.startswith("//") and len(rest) > 2:
        end = rest.find("/", 2)
        end = len(rest) if end == -1 else end
        authority, rest = rest[2:end], rest[end:]
    if scheme is not None and not rest.startswith("/") and (rest or not authority):
        raise ValueError(f"{text!r} has a scheme but no absolute path")
    return scheme, authority or None, _normalised(rest)


def qualify(text: str, root_of: Callable[[str | None, str | None], Root]) -> str:
    """The qualified form of a path, as a person wrote it.

    Args:
        text: any path: relative, absolute, with or without scheme and authority.
        root_of: gives the file system for a scheme and an authority, None where the path has none.

    Raises:
        ValueError: Hadoop takes no such path.
    """
    scheme, authority, path = parse(text)
    root = root_of(scheme, authority)
    if not path.startswith("/"):
        path = _normalised(f"{root.working_folder}/{path}")
    return root.prefix + path


def url(qualified: str) -> str:
    """A qualified path as a URL, as Spark's file logs hold it: every odd character per cent encoded as UTF-8."""
    scheme, authority, path = parse(qualified)
    return f"{scheme}://{authority or ''}{quote(path, safe=_URL_SAFE)}"


def local_path(uri: str) -> Path | None:
    """The local file that a path names, or None where Hadoop has to say.

    A path without a scheme lies on Hadoop's default file system: local unless a Hadoop configuration is around
    (`_HADOOP_IS_HERE`), so it is taken as local then only when it exists locally.
    """
    try:
        scheme, authority, path = parse(uri)
    except ValueError:
        return None
    if authority is not None or scheme not in {None, "file"}:
        return None
    local = Path(path)
    clustered = any(os.environ.get(name) for name in _HADOOP_IS_HERE)
    return None if scheme is None and clustered and not local.exists() else local


def unusable(uri: str) -> str | None:
    """Why the system will not even look for a local path: too long, a folder on the way may not be entered, ...

    None where it looks, whether something is there or not, and where Hadoop has to say.
    """
    try:
        path = local_path(uri)
        if path is not None:
            path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return (error.strerror or str(error)).lower()
    except ValueError as error:  # a character that no path may have
        return str(error)
    return None


def is_hidden(name: str) -> bool:
    """Whether Spark's file sources pass over a file or folder of this name: bookkeeping, not data.

    The rule is `HadoopFSUtils.shouldFilterOutPathName`: `_` (unless it starts a partition such as `_k=v`) or `.` in
    front, or a copy in progress.
    """
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


def has_glob(text: str) -> bool:
    """Whether Hadoop could read `text` as a pattern."""
    return _GLOB.search(text) is not None


def literal(path: str) -> str:
    """A path that Spark's readers take as it is: they read paths as globs."""
    return "".join(f"\\{character}" if character in "*?[]{}\\" else character for character in path)


def _normalised(path: str) -> str:
    path = _SLASHES.sub("/", path)
    if len(path) > 1:
        path = path.removesuffix("/")
    return _without_dots(path) if "/." in path or path.startswith(".") else path


def _without_dots(path: str) -> str:
    """Resolves `.` and `..` segments as `java.net.URI.normalize` does: leading `..` stay."""
    kept: list[str] = []
    for part in path.split("/"):
        if part == ".":
            continue
        if part == ".." and kept and kept[-1] not in {"", ".."}:
            kept.pop()
        else:
            kept.append(part)
    return "/".join(kept) or ("/" if path.startswith("/") else "")
