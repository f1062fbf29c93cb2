"""End-to-end latency of the rows of a job that keeps running (`resume.trigger`). Driver only.

A row has arrived when its file was last modified, and is there when its snapshot is committed. Hence a file that was
written long before the job started, or copied with its old time, counts from then: what was waiting is late. Tables
that keep their own books (Delta, Iceberg) have no such time; their rows arrive when Spark hands them over.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from sparkinfer.core.telemetry import Histogram

__all__ = ["Latency", "LatencyHistogram"]


@dataclass
class LatencyHistogram(Histogram):
    """Seconds from arrival to commit: from one second to a week."""

    bounds: ClassVar[tuple[float, ...]] = (
        *(1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 45.0),
        *(60.0, 90.0, 120.0, 180.0, 300.0, 600.0, 900.0, 1_800.0),
        *(3_600.0, 7_200.0, 14_400.0, 28_800.0, 86_400.0, 604_800.0),
    )


class Latency:
    """Adds up over the snapshots of a run; safe to ask from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._seen = LatencyHistogram()

    def committed(self, modified: pa.ChunkedArray | None, rows: int, seconds: float) -> None:
        """A snapshot was committed just now.

        Args:
            modified: when its files were last modified, timestamps with a time zone, nulls passed over; None for the
                rows of a table, which have arrived when the snapshot was begun.
            rows: that it has; those of files with many rows are taken as spread evenly over its files.
            seconds: since it was begun.
        """
        if modified is None:
            waited = np.full(rows, seconds)
        else:
            arrived = np.sort(_unix_seconds(modified))
            waited = np.maximum(time.time() - _spread(arrived, rows), 0.0)
        more = LatencyHistogram(
            np.bincount(
                np.searchsorted(LatencyHistogram.bounds, waited), minlength=len(LatencyHistogram.bounds) + 1
            ).tolist(),
            float(waited.sum()),
        )
        with self._lock:
            self._seen.add(more)

    def figures(self) -> LatencyHistogram:
        """A copy of the histogram so far."""
        with self._lock:
            return replace(self._seen, counts=list(self._seen.counts))


def _unix_seconds(times: pa.ChunkedArray) -> Any:
    return times.drop_null().cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy() / 1e6


def _spread(values: Any, count: int) -> Any:
    """`count` values, each of `values` as often as the others, or once more or less; the same where counts agree."""
    if not len(values):
        return values
    return values[np.arange(count) * len(values) // max(1, count)] if count != len(values) else values
