"""Durations and amounts as people write them."""

from __future__ import annotations

import pytest

from sparkinfer.core.quantities import Amount, amount, seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [("60s", 60.0), (60, 60.0), (0.5, 0.5), ("1.5 min", 90.0), ("2h", 7200.0), ("250 ms", 0.25), (" 1 D ", 86400.0)],
)
def test_durations(text, expected):
    assert seconds(text) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["", "s", "-1s", "0", "0s", "5 parsecs", "1e3", "one minute", "1s 2s"])
def test_no_durations(text):
    with pytest.raises(ValueError, match="is no duration; write 60s"):
        seconds(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (1000, Amount(1000, "batches")),
        ("1000 batches", Amount(1000, "batches")),
        ("1 batch", Amount(1, "batches")),
        ("100 files", Amount(100, "files")),
        ("10 GB", Amount(10**10, "bytes")),
        ("1.5MiB", Amount(3 << 19, "bytes")),
        ("1_000 bytes", Amount(1000, "bytes")),
    ],
)
def test_amounts(text, expected):
    assert amount(text) == expected


@pytest.mark.parametrize("text", ["", "0", "-5", "1.5 batches", "10 rows", "GB", "0.5 files", "0.2 b"])
def test_no_amounts(text):
    with pytest.raises(ValueError, match="is no amount; write 1000 batches"):
        amount(text)


def test_amounts_read_well():
    assert str(amount("10 GB")) == "10,000,000,000 bytes"
