"""Compares what the contestants wrote: the same best class on every row, the same confidence to a thousandth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from tests.benchmarks.contestants.job import OUTPUT_COLUMNS

__all__ = ["MAX_CONFIDENCE_DIFFERENCE", "Agreement", "Predictions", "check_outputs", "compare"]

MAX_CONFIDENCE_DIFFERENCE = 1e-3

Predictions = dict[str, tuple[int | None, float | None]]
"""(class, confidence) by the image's name, without its folder; None where a row failed."""


@dataclass(frozen=True)
class Agreement:
    """How far two outputs agree.

    Attributes:
        rows: of the output that was compared.
        missing: names that one of the two lacks, or has twice.
        top1_different: rows with another best class.
        confidence_difference: largest, over the rows of both.
    """

    rows: int
    missing: int
    top1_different: int
    confidence_difference: float

    @property
    def problem(self) -> str | None:
        """What is wrong, or None."""
        if self.missing:
            return f"{self.missing} rows missing or double"
        if self.top1_different:
            return f"another best class on {self.top1_different} of {self.rows} rows"
        if self.confidence_difference > MAX_CONFIDENCE_DIFFERENCE:
            return f"confidence differs by {self.confidence_difference:.2g}"
        return None


def check_outputs(outputs: Mapping[str, Sequence[Path]], reference: str) -> dict[str, Agreement]:
    """Compares all outputs with the reference's first one (or, where it wrote none, with the first there is).

    Args:
        outputs: folders with the Parquet files of one job each, by contestant.

    Returns:
        The worst agreement of each contestant's jobs.
    """
    first = next((folders[0] for name, folders in _reference_first(outputs, reference) if folders), None)
    if first is None:
        return {}
    expected, _ = _read(first)
    return {
        name: max((compare(expected, *_read(folder)) for folder in folders), key=_badness)
        for name, folders in outputs.items()
        if folders
    }


def compare(expected: Predictions, found: Predictions, rows: int) -> Agreement:
    """Compares `found`, read from `rows` rows, with `expected`. A failed row (null class) counts as different."""
    both = expected.keys() & found.keys()
    differences = [_difference(expected[name][1], found[name][1]) for name in both]
    return Agreement(
        rows=rows,
        missing=len(expected.keys() ^ found.keys()) + rows - len(found),
        top1_different=sum(found[name][0] is None or expected[name][0] != found[name][0] for name in both),
        confidence_difference=max(differences, default=0.0),
    )


def _difference(a: float | None, b: float | None) -> float:
    """Infinite where one is missing or not a number, so that the largest difference shows it."""
    return math.inf if a is None or b is None or math.isnan(a - b) else abs(a - b)


def _reference_first(outputs: Mapping[str, Sequence[Path]], reference: str) -> list[tuple[str, Sequence[Path]]]:
    return sorted(outputs.items(), key=lambda item: item[0] != reference)


def _badness(agreement: Agreement) -> tuple[int, int, float]:
    return agreement.missing, agreement.top1_different, agreement.confidence_difference


def _read(folder: Path) -> tuple[Predictions, int]:
    """The predictions in a folder of Parquet files, and how many rows they had."""
    predictions: Predictions = {}
    rows = 0
    for part in sorted(folder.rglob("*.parquet")):
        table = pq.ParquetFile(part).read(columns=list(OUTPUT_COLUMNS))
        rows += table.num_rows
        for path, best, confidence in zip(*(table[name].to_pylist() for name in OUTPUT_COLUMNS), strict=True):
            predictions[path.rsplit("/", 1)[-1]] = (best, confidence)
    return predictions, rows
