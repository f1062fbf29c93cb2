"""Keys, values and foreign texts as they may stand in a message: short, and nothing a terminal would act on.

Driver only; imports no pyspark.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sparkinfer.core.secrets import redacted

__all__ = ["counted", "dotted", "printable", "shortened", "shown"]

MAX_VALUE_CHARS = 60
"""Of a wrong value."""
MAX_KEY_CHARS = 80
MAX_TEXT_CHARS = 300
"""Of what somebody else says: pydantic, PyYAML."""


def shown(value: Any) -> str:
    """A wrong value, as Python writes it."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    return _cut(written(value), MAX_VALUE_CHARS)


def written(value: Any) -> str:
    """`repr`, also of numbers with more digits than Python writes out."""
    try:
        return repr(value)
    except ValueError:
        return "a number of thousands of digits"


def counted(count: int, what: str) -> str:
    """1 error, 2,000 errors."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def dotted(key: Iterable[str]) -> str:
    """A key in full: `model.path`."""
    return printable(".".join(key), MAX_KEY_CHARS)


def printable(text: str, limit: int = MAX_VALUE_CHARS) -> str:
    """A text of the person's, with line breaks and control characters escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in _cut(text, limit))


def shortened(text: str) -> str:
    """A sentence that quotes what may be long: its middle is left out."""
    text = redacted(text)
    half = MAX_TEXT_CHARS // 2
    if len(text) > MAX_TEXT_CHARS:
        text = f"{text[:half]} ... {text[-half:]}"
    return printable(text, len(text))


def _cut(text: str, limit: int) -> str:
    text = redacted(text)  # before it is cut: half a secret is not found any more
    return text if len(text) <= limit else f"{text[:limit]}..."
