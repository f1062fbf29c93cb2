"""The arithmetic of the report: medians, ratios and their spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

__all__ = ["Spread", "ratios", "spread"]


@dataclass(frozen=True)
class Spread:
    """A median with the smallest and the largest value it came from."""

    median: float
    low: float
    high: float

    def text(self, digits: int) -> str:
        """`12.3 (11.9 to 12.8)`."""
        return f"{self.median:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def spread(values: Sequence[float]) -> Spread:
    """Median, minimum and maximum of at least one value."""
    return Spread(median(values), min(values), max(values))


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """The spread of ours over theirs, round by round: both ran close together, so what slowed one slowed the other.

    Args:
        ours, theirs: one value for each round, in the same order; the rounds that both finished are used.
    """
    return spread([a / b for a, b in zip(ours, theirs, strict=False)])
