"""Cutting inputs into snapshots; telling jobs apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkinfer.core.quantities import amount
from sparkinfer.driver.checkpoints.fingerprint import differences
from sparkinfer.driver.checkpoints.snapshots import cut
from sparkinfer.driver.checkpoints.streaming import admission


@pytest.mark.parametrize(
    ("weights", "limit", "expected"),
    [
        ([1] * 5, 2, [[0, 1], [2, 3], [4]]),
        ([1] * 4, 4, [[0, 1, 2, 3]]),
        ([5, 1, 1, 1], 2, [[0], [1], [2, 3]]),
        ([0, 0, 0], 2, [[0, 1, 2]]),
        ([], 3, []),
    ],
)
def test_runs(weights, limit, expected):
    assert [part.tolist() for part in cut(np.array(weights, np.int64), limit)] == expected


@given(st.lists(st.integers(0, 50), max_size=60), st.integers(1, 40))
def test_every_item_once_in_order_and_no_run_over_the_limit_by_more_than_one_item(weights, limit):
    parts = cut(np.array(weights, np.int64), limit)
    assert [position for part in parts for position in part.tolist()] == list(range(len(weights)))
    assert all(sum(weights[p] for p in part[:-1]) < limit for part in parts)


def test_differences_name_keys_and_both_values():
    then = {"a": {"x": 1, "y": [1, 2]}, "b": None, "gone": {}}
    now = {"a": {"x": 1, "y": [1, 3]}, "b": "ü", "new": {"k": True}}
    assert differences(then, now) == [
        "a.y: [1, 2] then, [1, 3] now",
        'b: null then, "ü" now',
        "gone: {} then, absent now",
        "new.k: absent then, true now",
    ]
    assert differences(then, then) == []
    assert differences(then, now, but={"a.y", "gone", "new.k"}) == ['b: null then, "ü" now']


def test_admission_in_every_sources_words():
    assert admission(amount("7 files"), 32)["maxFilesPerTrigger"] == "7"
    assert admission(amount("2 MB"), 32) == {
        "maxBytesPerTrigger": "2000000",
        "streaming-max-rows-per-micro-batch": "20",
    }
    assert admission(amount("3 batches"), 32)["streaming-max-rows-per-micro-batch"] == "96"
