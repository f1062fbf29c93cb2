"""Packing arithmetic: bounds that hold for any sizes, and figures worked out by hand."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkinfer.driver.splits.packing import (
    ROW_COST,
    SPLIT,
    heaviest_over_mean,
    leading_sizes,
    lpt,
    murmur3,
    salts,
    spark_split,
    target_bins,
)

SIZES = st.lists(st.integers(0, 10**9), min_size=1, max_size=60)


def as_sizes(values):
    return np.array(values, np.int64)


def next_fit_decreasing(sizes, max_split, open_cost):
    """Spark's rule, file by file: what `FilePartition.getFilePartitions` says."""
    task, filled, has_files = 0, 0, False
    tasks = [0] * len(sizes)
    for position in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        if filled + sizes[position] > max_split:
            task, filled, has_files = task + has_files, 0, False
        tasks[position] = task
        filled, has_files = filled + sizes[position] + open_cost, True
    return tasks


def skewed_sizes(seed):
    """1,000 files, 1 kB to 1 MB, as many in each order of magnitude."""
    return (1000 * 10 ** np.random.default_rng(seed).uniform(0, 3, 1000)).astype(np.int64)


@given(SIZES, st.integers(1, 2 * 10**9), st.sampled_from([0, 1, 4 << 20]))
def test_the_simulated_split_is_spark_s_rule(sizes, max_split, open_cost):
    assert spark_split(as_sizes(sizes), max_split, open_cost).tolist() == next_fit_decreasing(
        sizes, max_split, open_cost
    )


@given(SIZES, st.integers(1, 60))
def test_lpt_fills_every_bin_and_the_heaviest_is_at_most_the_mean_and_one_row(sizes, bins):
    bins = min(bins, len(sizes))
    weights = [max(1, size) for size in sizes]
    assigned = lpt(as_sizes(sizes), bins)
    loads = Counter()
    for place, weight in zip(assigned.tolist(), weights, strict=True):
        loads[place] += weight
    assert set(loads) == set(range(bins))
    # When the last row of the heaviest bin was placed, that bin was the lightest: at most the mean of the others.
    assert max(loads.values()) <= sum(weights) / bins + max(weights) * (1 - 1 / bins) + 1e-6


@given(st.lists(st.integers(1, 20), min_size=2, max_size=8), st.integers(2, 3))
def test_lpt_keeps_grahams_bound(weights, bins):
    if len(weights) < bins:
        return
    best = min(
        max(sum(w for w, b in zip(weights, code, strict=True) if b == k) for k in range(bins))
        for code in np.ndindex(*[bins] * len(weights))
    )
    loads = np.bincount(lpt(as_sizes(weights), bins), weights=weights)
    assert loads.max() <= (4 / 3 - 1 / (3 * bins)) * best + 1e-9


@given(st.lists(st.integers(0, 9), min_size=1, max_size=200))
def test_leading_sizes_lead_spark_s_rule_to_exactly_the_wished_bins(bins):
    wished = np.unique(bins, return_inverse=True)[1].astype(np.int32)
    order, sizes = leading_sizes(wished)
    assert sorted(order.tolist()) == list(range(len(bins)))
    assert sizes.min() > 0
    got = next_fit_decreasing(sizes.tolist(), SPLIT, 0)
    files_of_task = Counter(zip(got, wished[order].tolist(), strict=True))
    assert len(files_of_task) == len(set(got)) == len(set(bins))


def test_a_bin_too_full_to_lead_is_refused():
    with pytest.raises(ValueError, match="1,048,576 files"):
        leading_sizes(np.zeros(1 << 20, np.int32))


def test_no_files_lead_nowhere():
    order, sizes = leading_sizes(np.zeros(0, np.int32))
    assert len(order) == len(sizes) == 0
    assert spark_split(as_sizes([]), 1, 0).tolist() == []


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("cores", [1, 2, 7, 16, 64])
@pytest.mark.parametrize("row_cost", [0, ROW_COST])
def test_a_thousand_skewed_files_are_balanced_in_bytes(seed, cores, row_cost):
    sizes = skewed_sizes(seed)
    bins = target_bins(len(sizes), int(sizes.sum()), cores)
    loads = np.bincount(lpt(sizes + row_cost, bins), weights=sizes)
    assert len(loads) == bins >= cores
    assert loads.max() <= max(1.2 * loads.mean(), sizes.max())


@pytest.mark.parametrize(
    ("rows", "total_bytes", "cores", "bins"),
    [
        (0, 0, 8, 1),  # something must be planned
        (1, 10**9, 8, 1),  # a row cannot be cut
        (5, 10**9, 8, 5),
        (20, 2_000_000, 2, 2),  # tiny: a task a core, no more
        (1000, 110_000_000, 2, 6),  # 560 MB of work: three a core
        (100, 11_000_000, 16, 16),
        (1_000_000, 110_000_000_000, 100, 560),  # 560 GB of work: none above 1 GB
    ],
)
def test_number_of_tasks(rows, total_bytes, cores, bins):
    assert target_bins(rows, total_bytes, cores) == bins


def test_heaviest_over_mean():
    assert heaviest_over_mean(np.array([0, 0, 1], np.int32), as_sizes([1, 1, 6])) == 6 / 4
    assert heaviest_over_mean(np.zeros(0, np.int32), as_sizes([])) == 1
    assert heaviest_over_mean(np.zeros(3, np.int32), as_sizes([0, 0, 0])) == 1


def test_murmur3_is_spark_s_hash_of_an_int():
    # SELECT hash(0), hash(1), hash(42)
    assert [murmur3(value) for value in (0, 1, 42)] == [933211791, -559580957, 29417773]


@pytest.mark.parametrize("bins", [1, 2, 3, 17, 200])
def test_salts_reach_every_bin(bins):
    assert [math.floor(murmur3(salt) % bins) for salt in salts(bins)] == list(range(bins))
