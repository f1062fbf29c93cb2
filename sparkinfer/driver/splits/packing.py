"""Which task gets which file: plain arithmetic on sizes. Driver side; no Spark, no I/O.

Spark fills tasks in one fixed way (`FilePartition.getFilePartitions`): files by size, largest first and otherwise in
the order given; a file that no longer fits under `maxSplitBytes` starts the next task; every file costs its size plus
`openCostInBytes`. As `manifest` may tell Spark any size, that way can be led to any assignment: see `leading_sizes`.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "LED",
    "ROW_COST",
    "heaviest_over_mean",
    "leading_sizes",
    "lpt",
    "murmur3",
    "salts",
    "spark_split",
    "target_bins",
]

ROW_COST = 450_000
"""What a row costs besides its bytes, expressed in bytes of JPEG: inference of efficientnet-lite0 takes 13 ms on a
core on which a photo of 110 kB takes 3.2 ms to decode, so 13 / 3.2 * 110 kB."""

MIN_TASK = 16_000_000
"""Below it a task is too short (some 0.6 s by the figures of `ROW_COST`) to be worth its start. Bytes and row costs."""

MAX_TASK = 1_000_000_000
"""Above it (some 30 s) a lost task, or one straggler at the end, costs too much. Bytes and row costs."""

SPLIT = 1 << 40
"""Bytes of one task under `LED`."""

LED = {
    "spark.sql.files.maxPartitionBytes": str(SPLIT),
    "spark.sql.files.openCostInBytes": "0",
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.files.maxPartitionNum": None,
}
"""Session settings under which `leading_sizes` lead; read when the plan of a job is made, not before."""

Sizes = NDArray[np.int64]


def target_bins(rows: int, total_bytes: int, cores: int) -> int:
    """How many tasks to cut an input into.

    At least one a core; three a core where the work is worth it, so that a slow core or a heavy row evens out; more
    so that no task is too long.

    Returns:
        From 1 to `rows`.
    """
    work = total_bytes + rows * ROW_COST
    bins = max(cores, min(3 * cores, work // MIN_TASK), -(-work // MAX_TASK))
    return max(1, min(rows, bins))


def lpt(weights: Sizes, bins: int) -> NDArray[np.int32]:
    """Longest processing time first: the heaviest row left goes to the lightest bin.

    The heaviest bin carries at most 4/3 of the optimum (Graham 1969), and at most the mean plus one row.

    Args:
        weights: one per row, at least 0; a 0 counts as 1 so that no bin stays empty.
        bins: at most the number of rows.

    Returns:
        Bin of every row.
    """
    assigned = np.zeros(len(weights), np.int32)
    heap = [(0, b) for b in range(bins)]
    order = np.argsort(-weights, kind="stable")
    for row, weight in zip(order.tolist(), np.maximum(weights, 1)[order].tolist(), strict=True):
        load, lightest = heap[0]
        assigned[row] = lightest
        heapq.heapreplace(heap, (load + weight, lightest))
    return assigned


def leading_sizes(bins: NDArray[np.int32]) -> tuple[NDArray[np.int64], Sizes]:
    """Sizes that lead Spark to put every file into the task that `bins` says, under `LED`.

    A bin of n files gives each of them SPLIT // n: together they fill their task up to less than n, and the next file
    (SPLIT // m, of a bin with m >= n files) does not fit any more as long as SPLIT // m >= n. Smaller bins have the
    larger sizes, so Spark's order keeps bins apart; bins of equal n stay apart by the order in which Spark is told.

    Args:
        bins: bin of every file.

    Returns:
        Positions of the files in the order in which Spark must be told, and the sizes in that order.

    Raises:
        ValueError: more files in one bin than sizes can lead.
    """
    count = np.bincount(bins)[bins].astype(np.int64)
    if len(count) and int(count.max()) ** 2 >= SPLIT:
        raise ValueError(f"{count.max():,} files are too many for one task")
    order = np.lexsort((bins, count))
    return order, SPLIT // count[order]


def spark_split(sizes: Sizes, max_split: int, open_cost: int) -> NDArray[np.int32]:
    """The task that Spark's own way gives every file: next fit, decreasing.

    Args:
        sizes: of the files, in the order of the listing.
        max_split: `FilePartition.maxSplitBytes`.
        open_cost: `spark.sql.files.openCostInBytes`.
    """
    order = np.argsort(-sizes, kind="stable")
    decreasing = sizes[order]
    costs = np.concatenate([[0], np.cumsum(decreasing + open_cost)])
    ends = costs[:-1] + decreasing  # what a task would hold after a file, were it to start with the first one
    task_of = np.zeros(len(sizes), np.int32)
    start = task = 0
    while start < len(sizes):
        # Within a task `ends` grows unless the open cost is smaller than the fall from one file to the next.
        over = np.flatnonzero(ends[start + 1 : start + 1 + _reach(start, costs, max_split)] - costs[start] > max_split)
        end = start + 1 + int(over[0]) if len(over) else len(sizes)
        task_of[order[start:end]] = task
        start, task = end, task + 1
    return task_of


def _reach(start: int, costs: Sizes, max_split: int) -> int:
    """How many files after `start` to look at: the task ends before its costs pass `max_split` by one file."""
    return int(np.searchsorted(costs, costs[start] + max_split, side="right")) - start + 1


def heaviest_over_mean(bins: NDArray[np.int32], weights: Sizes) -> float:
    """Weight of the heaviest bin over the mean; 1 for no bins or no weight."""
    totals = np.bincount(bins, weights=weights)
    return float(totals.max() / totals.mean()) if len(totals) and totals.any() else 1.0


def salts(bins: int) -> list[int]:
    """For each bin an int whose hash Spark's `repartition(bins, salt)` puts exactly there.

    Spark takes Murmur3 of the columns with seed 42, modulo the number of partitions, made non-negative
    (`HashPartitioning.partitionIdExpression`). On average bins * ln(bins) ints are tried.
    """
    found: dict[int, int] = {}
    value = 0
    while len(found) < bins:
        found.setdefault(murmur3(value) % bins, value)
        value += 1
    return [found[b] for b in range(bins)]


def murmur3(value: int, seed: int = 42) -> int:
    """Murmur3 (x86, 32 bits) of one int as Spark's `hash` function gives it: signed.

    Args:
        value: from 0 to 2^31 - 1.
        seed: Spark's is 42.
    """
    k = _rotated((value * 0xCC9E2D51) & _MASK, 15) * 0x1B873593 & _MASK
    h = (_rotated(seed ^ k, 13) * 5 + 0xE6546B64) & _MASK
    h ^= 4  # length in bytes
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & _MASK
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & _MASK
    h ^= h >> 16
    return h - (1 << 32) if h >> 31 else h


_MASK = 0xFFFFFFFF


def _rotated(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _MASK
