"""Spark settings as `plan` sees them: spark-defaults files, and values read as Spark reads them. Driver side; no JVM.

A profile is what `spark-submit --properties-file` takes: a file of `java.util.Properties`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from sparkinfer.core.errors import SpecError
from sparkinfer.driver.wording import printable, shown

__all__ = ["Settings", "parse_properties", "read_profile", "size_bytes"]

_UNITS = {"b": 0, "k": 10, "kb": 10, "m": 20, "mb": 20, "g": 30, "gb": 30, "t": 40, "tb": 40, "p": 50, "pb": 50}
"""Powers of two: `JavaUtils.byteStringAs` takes `kb` for 1,024 bytes as well."""

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

MEBI = 1 << 20


def read_profile(path: str) -> dict[str, str]:
    """Settings of a file, in its order.

    Raises:
        SpecError: it cannot be read, or holds no settings.
    """
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else "it is not UTF-8 text"
        raise SpecError(f"{path!r} cannot be read: {reason}", key="--profile") from error
    found = parse_properties(text)
    if 2 * sum(key.startswith("spark.") for key in found) <= len(found):
        raise SpecError(
            f"{path!r} holds no setting of Spark",
            key="--profile",
            hint="a line is a key and a value: spark.executor.memory 12g",
        )
    return found


def parse_properties(text: str) -> dict[str, str]:
    """Keys and values of a Java properties file; values without the space around them, as Spark has them.

    A key ends at the first space, `=` or `:`. A line that ends with a backslash goes on; `#` and `!` begin comments.
    """
    found = {}
    for line in _lines(text):
        match = re.match(r"((?:\\.|[^\\\s=:])*)\s*[=:]?\s*(.*)", line, re.DOTALL)
        assert match is not None  # every line has a key, if an empty one
        found[_unescaped(match[1])] = _unescaped(match[2]).strip()
    return found


def _lines(text: str) -> Iterator[str]:
    pending = ""
    for raw in re.split(r"\r\n|\n|\r", text):
        line = raw.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        goes_on = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        pending += line[:-1] if goes_on else line
        if not goes_on:
            yield pending
            pending = ""
    if pending:
        yield pending


def _unescaped(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        escaped = match[1]
        return chr(int(escaped[1:], 16)) if len(escaped) > 1 else _ESCAPES.get(escaped, escaped)

    return re.sub(r"\\(u[0-9a-fA-F]{4}|.)", plain, text, flags=re.DOTALL)


def size_bytes(text: str, unit: int = 1) -> int:
    """A size as Spark reads it: `12g`, `512m`, `64KB`, or a number of `unit` bytes.

    Raises:
        ValueError: Spark takes no such size.
    """
    match = re.fullmatch(r"([0-9]+)([a-z]+)?", text.strip().lower())
    if match is None or (match[2] is not None and match[2] not in _UNITS):
        raise ValueError(f"{text!r} is no size; whole numbers with b, k, m, g or t: 12g, 512m")
    return int(match[1]) * (unit if match[2] is None else 1 << _UNITS[match[2]])


class Settings:
    """Settings of Spark with typed look-ups.

    Args:
        values: by key, as texts.

    Every look-up raises SpecError, with the key, for a value that Spark would not take.
    """

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = dict(values)

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def text(self, key: str, default: str = "") -> str:
        """The value as it is."""
        return self.values.get(key, default)

    def whole(self, key: str, default: int) -> int:
        """A whole number, at least 0."""
        text = self.text(key, str(default)).strip()
        if not re.fullmatch(r"[0-9]+", text):
            raise self._wrong(key, "a whole number")
        return int(text)

    def number(self, key: str, default: float) -> float:
        """A number, at least 0."""
        try:
            value = float(self.text(key, str(default)))
        except ValueError:
            value = -1.0
        if not 0 <= value < float("inf"):
            raise self._wrong(key, "a number, at least 0")
        return value

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false."""
        text = self.text(key, str(default)).strip().lower()
        if text not in {"true", "false"}:
            raise self._wrong(key, "true or false")
        return text == "true"

    def size(self, key: str, default: str, unit: int = MEBI) -> int:
        """Bytes.

        Args:
            key: the setting.
            default: Spark's.
            unit: bytes that a bare number counts: MiB for memory.
        """
        try:
            return size_bytes(self.text(key, default), unit)
        except ValueError:
            raise self._wrong(key, "a size such as 12g or 512m, in whole numbers") from None

    def _wrong(self, key: str, allowed: str) -> SpecError:
        return SpecError(
            f"{shown(self.values[key])} is nothing that Spark takes", key=printable(key), allowed=[allowed]
        )
