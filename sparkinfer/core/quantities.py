"""Durations and amounts as people write them: `60s`, `10 GB`, `1000 batches`. Both sides; stdlib only."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

__all__ = ["Amount", "Unit", "amount", "seconds"]

_SECONDS = {"ms": 0.001, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

_BYTES = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}

_MOST = 1 << 53
"""More is a slip of the keyboard."""

_NUMBER_AND_UNIT = re.compile(r"\s*(\d[\d_]*(?:\.\d+)?)\s*([a-zA-Z]*)\s*")

Unit = Literal["batches", "files", "bytes"]


@dataclass(frozen=True)
class Amount:
    """So many batches, files or bytes."""

    count: int
    unit: Unit

    def __str__(self) -> str:
        return f"{self.count:,} {self.unit}"


def seconds(text: str | float) -> float:
    """`60`, `60s`, `1.5 min`, `2h` as seconds.

    Raises:
        ValueError: no such duration.
    """
    number, unit = _split(text)
    if number is None or unit not in {"", *_SECONDS} or number <= 0:
        raise ValueError(f"{text!r} is no duration; write 60s, 5 min or 2 h")
    return number * _SECONDS.get(unit, 1.0)


def amount(text: str | int) -> Amount:
    """`1000`, `1000 batches`, `100 files`, `10 GB` as an amount; a bare number counts batches.

    Raises:
        ValueError: no such amount.
    """
    number, unit = _split(text)
    factor = _BYTES.get(unit)
    if number is not None and number >= 1 and number * (factor or 1) <= _MOST:
        if unit in {"", "batch", "batches"} and number == int(number):
            return Amount(int(number), "batches")
        if unit in {"file", "files"} and number == int(number):
            return Amount(int(number), "files")
        if unit == "bytes" or factor:
            return Amount(int(number * (factor or 1)), "bytes")
    raise ValueError(f"{text!r} is no amount; write 1000 batches, 100 files or 10 GB")


def _split(text: str | float) -> tuple[float | None, str]:
    found = _NUMBER_AND_UNIT.fullmatch(str(text))
    number = float(found.group(1).replace("_", "")) if found else math.inf
    # Hundreds of digits are infinity, and no amount.
    return (number, found.group(2).lower()) if found and math.isfinite(number) else (None, "")
