"""Values as a reader of the report sees them: HTML-safe texts, and numbers with units. Driver side; no Spark."""

from __future__ import annotations

import html
import math

from sparkinfer.driver.wording import printable

__all__ = ["duration", "esc", "number", "percent", "rate", "short_seconds"]

MAX_CHARS = 600
"""Of a path or a message."""


def esc(text: object) -> str:
    """Any text as it may stand in HTML, in an attribute too.

    Control characters, lone surrogates and characters that change the direction of writing are shown as escapes.
    """
    return html.escape(printable(str(text), MAX_CHARS), quote=True)


def number(value: float | None) -> str:
    """A count, or a number with at most three significant digits: 1,234,567; 12.3; a dash where there is none."""
    if value is None:
        return "–"  # noqa: RUF001 - a dash is meant
    if float(value).is_integer():
        return f"{int(value):,}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def rate(rows: float, seconds: float) -> float | None:
    """Rows in a second; None without time."""
    return rows / seconds if seconds > 0 else None


def percent(part: float, whole: float) -> str:
    """A share: 0 %, < 0.1 %, 4.8 %, 100 %; a dash of nothing. Never rounded to 0 or 100 when it is not."""
    if not whole:
        return "–"  # noqa: RUF001 - a dash is meant
    share = 100 * part / whole
    if share in {0, 100}:
        return f"{share:.0f} %"
    if share < 0.1:
        return "< 0.1 %"
    return "> 99.9 %" if share > 99.9 else f"{share:.1f} %"


def duration(seconds: float) -> str:
    """A time that passed: 0.4 s, 12.3 s, 4 min 10 s, 3 h 05 min, 2 d 4 h."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(whole / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(minutes / 60)
    return f"{hours // 24} d {hours % 24} h"


def short_seconds(seconds: float | None) -> str:
    """A time of one step: 850 µs, 12.3 ms, 1.50 s, 75.0 s; a dash where there is none."""
    if seconds is None:
        return "–"  # noqa: RUF001 - a dash is meant
    if seconds == 0:
        return "0 s"
    if seconds < 0.001:
        return f"{seconds * 1e6:.0f} µs"
    return f"{number(seconds * 1000)} ms" if seconds < 1 else f"{number(seconds)} s"
