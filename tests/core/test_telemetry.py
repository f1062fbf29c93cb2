"""What a task tells: histograms that add up, messages that nobody else can make."""

from __future__ import annotations

import hmac
import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkinfer.core.errors import ErrorCode
from sparkinfer.core.telemetry import (
    MAX_MESSAGE_BYTES,
    STAGES,
    DeviceFigures,
    Figures,
    SecondsHistogram,
    SizeHistogram,
    TaskMessage,
    TaskState,
    pack,
    unpack,
)

TOKEN = bytes(range(32))


def message(**changes):
    figures = Figures(rows=7, errors={"EMPTY": 2}, image_bytes=1_000, model_loads=1, model_load_seconds=0.5)
    figures.stages["decode"].observe(0.004)
    figures.batch_images.observe(5)
    values = {
        "run_id": "run-1",
        "pass_number": 1,
        "stage": 3,
        "partition": 4,
        "attempt": 17,
        "attempt_number": 1,
        "host": "node-1",
        "pid": 4242,
        "sequence": 9,
        "state": TaskState.RUNNING,
        "started": 1.75e9,
        "seconds": 12.5,
        "engine": "arrow",
        "cores": 2,
        "batch_size": 8,
        "figures": figures,
        "device": DeviceFigures("cuda:0", "GPU-1", 1 << 30, 1 << 37, 0.5),
    }
    return TaskMessage(**{**values, **changes})


def test_bounds_are_fixed_and_nearly_even():
    """Stored figures and Prometheus series depend on them."""
    bounds = SecondsHistogram.bounds
    assert bounds[:7] == (0.0001, 0.00015, 0.00022, 0.00033, 0.00047, 0.00068, 0.001)
    assert bounds[-4:] == (330.0, 470.0, 680.0, 1000.0)
    assert len(bounds) == 43
    assert all(1.4 < upper / lower < 1.55 for lower, upper in itertools.pairwise(bounds))
    assert SizeHistogram.bounds[:4] == (1, 2, 4, 8)
    assert SizeHistogram.bounds[-1] == 65_536


def test_a_value_lies_in_the_first_bucket_that_reaches_it():
    sizes = SizeHistogram()
    for value in (1, 2, 3, 4, 5, 65_536, 70_000):
        sizes.observe(value)
    assert sizes.counts == [1, 1, 2, 1, *[0] * 12, 1, 1]
    assert (sizes.count, sizes.total, sizes.mean) == (7, 135_551, 135_551 / 7)
    assert list(sizes.cumulative())[:5] == [(1, 1), (2, 2), (4, 4), (8, 5), (16, 5)]
    assert list(sizes.cumulative())[-2:] == [(65_536, 6), (math.inf, 7)]


def test_quantiles_by_hand():
    sizes = SizeHistogram()
    assert (sizes.quantile(0.5), sizes.mean) == (None, None)
    for value in [3] * 60 + [10] * 40:  # in the buckets (2, 4] and (8, 16]
        sizes.observe(value)
    assert sizes.quantile(0.3) == pytest.approx(2 * 2**0.5)  # half of the first bucket
    assert sizes.quantile(0.6) == pytest.approx(4)
    assert sizes.quantile(0.8) == pytest.approx(8 * 2**0.5)
    assert sizes.quantile(1) == pytest.approx(16)
    for _ in range(900):
        sizes.observe(1e6)  # beyond the last bound
    assert sizes.quantile(0.99) == 65_536


@given(st.integers(0, 1000), st.floats(0.01, 0.999))
def test_quantiles_are_right_to_the_bucket(seed, share):
    values = np.random.default_rng(seed).lognormal(-4, 1.5, 500)
    seconds = SecondsHistogram()
    for value in values:
        seconds.observe(value)
    true = float(np.quantile(values, share, method="inverted_cdf"))
    assert abs(math.log(seconds.quantile(share) / true)) <= math.log(1.55)


@given(st.lists(st.floats(0, 2000), max_size=30), st.lists(st.floats(0, 2000), max_size=30))
def test_histograms_add_up(first, second):
    one, other, both = SecondsHistogram(), SecondsHistogram(), SecondsHistogram()
    for value in first:
        one.observe(value)
        both.observe(value)
    for value in second:
        other.observe(value)
        both.observe(value)
    one.add(other)
    assert one.counts == both.counts
    assert one.total == pytest.approx(both.total)


def test_figures_add_up_and_sums_share_nothing():
    part = message().figures
    total = Figures.sum([part, part, Figures(rows=1, errors={"EMPTY": 1, "TIMEOUT": 3}, oom_halvings=2)])
    assert (total.rows, total.errors, total.failed) == (15, {"EMPTY": 5, "TIMEOUT": 3}, 8)
    assert (total.image_bytes, total.model_loads, total.model_load_seconds) == (2_000, 2, 1.0)
    assert (total.oom_halvings, total.stages["decode"].count, total.batch_images.total) == (2, 2, 10)
    assert (part.rows, part.errors, part.stages["decode"].count) == (7, {"EMPTY": 2}, 1)


def test_a_message_comes_back():
    assert unpack(pack(message(), TOKEN), TOKEN) == message()
    assert unpack(pack(message(device=None), TOKEN), TOKEN).device is None


def test_the_signature_is_the_standards():
    data = pack(message(), TOKEN)
    assert data[:32] == hmac.new(TOKEN, data[32:], "sha256").digest()
    assert json.loads(data[32:])["run_id"] == "run-1"
    assert TOKEN not in data


def test_another_token_and_every_changed_byte_are_noticed():
    data = pack(message(), TOKEN)
    with pytest.raises(ValueError, match="did not sign"):
        unpack(data, bytes(32))
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(ValueError, match="did not sign"):
            unpack(bytes(changed), TOKEN)


@pytest.mark.parametrize("data", [b"", b"short", bytes(32), bytes(100)])
def test_noise_is_no_message(data):
    with pytest.raises(ValueError, match="did not sign"):
        unpack(data, TOKEN)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"run_id": 1}'])
def test_signed_nonsense_is_no_message_either(text):
    body = text.encode()
    with pytest.raises(ValueError, match="no message of a task"):
        unpack(hmac.digest(TOKEN, body, "sha256") + body, TOKEN)


@pytest.mark.parametrize("buckets", [1, 17, 19])
def test_a_histogram_of_another_version_is_refused(buckets):
    body = json.loads(pack(message(), TOKEN)[32:])
    body["figures"]["batch_images"]["counts"] = [0] * buckets
    text = json.dumps(body).encode()
    with pytest.raises(ValueError, match=f"{buckets} buckets, expected 18"):
        unpack(hmac.digest(TOKEN, text, "sha256") + text, TOKEN)


def test_the_longest_message_is_short_enough():
    most = 1 << 50
    figures = Figures(rows=most, errors={str(code): most for code in ErrorCode}, image_bytes=most)
    for stage in STAGES:
        figures.stages[stage].counts = [most] * 44
        figures.stages[stage].total = 1e15 / 3
    figures.batch_images.counts = [most] * 18
    longest = message(figures=figures, host="h" * 255, run_id="r" * 64, device=DeviceFigures("cuda:15", "G" * 64))
    assert len(pack(longest, TOKEN)) < MAX_MESSAGE_BYTES
