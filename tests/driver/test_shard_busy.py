"""How long cores stay busy: small schedules worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from sparkinfer.driver.splits.rows import busy


@pytest.mark.parametrize(
    ("weights", "cores", "expected"),
    [
        ([1, 1], 2, 1),
        ([1, 1, 1], 2, 4 / 3),  # two rounds where one and a half would do
        ([4], 2, 2),  # one core waits
        ([1, 1, 1, 1, 4], 2, 1.5),  # the long one last: ends at 6 instead of 4
        ([4, 1, 1, 1, 1], 2, 1),
        ([5, 5, 5, 5], 8, 2),
    ],
)
def test_busy(weights, cores, expected):
    assert busy(np.array(weights), cores) == pytest.approx(expected)
