"""Imbalance and latency: arithmetic on made-up tasks and files."""

from __future__ import annotations

import time

import pyarrow as pa
import pytest

from sparkinfer.core.telemetry import TaskState
from sparkinfer.driver.watching.imbalance import Imbalance, imbalance
from sparkinfer.driver.watching.latency import Latency
from sparkinfer.driver.watching.telemetry import TaskRecord


def record(partition, seconds, *, stage=1, host="a", rows=10, state=TaskState.ENDED):
    return TaskRecord(stage, partition, 0, host, state, seconds, rows, {}, 0, 0.0, 0.0, 0.0)


def test_nothing_ended_has_no_imbalance():
    assert imbalance([]) is None
    assert imbalance([record(0, 5.0, state=TaskState.FAILED)]) is None


def test_partitions_by_seconds_and_hosts_by_rows():
    # Seconds 10, 10, 10, 18: mean 12. Rows 10 + 10 + 40 on a, 20 on b: mean 40.
    records = [record(0, 10), record(1, 10), record(2, 10, rows=40), record(3, 18, host="b", rows=20)]
    assert imbalance(records) == Imbalance(partitions=pytest.approx(0.5), hosts=pytest.approx(0.5))


def test_one_partition_is_even():
    assert imbalance([record(0, 10)]) == Imbalance(partitions=0.0, hosts=0.0)


def test_only_the_latest_pass_and_the_attempt_that_counts():
    earlier = [record(0, 1000, stage=1), record(1, 1, stage=1)]
    attempts = [record(0, 500, stage=2, state=TaskState.FAILED), record(0, 10, stage=2), record(1, 10, stage=2)]
    assert imbalance([*earlier, *attempts]) == Imbalance(partitions=0.0, hosts=0.0)


def test_no_rows_are_even():
    assert imbalance([record(0, 0.0, rows=0), record(1, 0.0, rows=0, host="b")]) == Imbalance(0.0, 0.0)


NOW = 1_700_000_000.0


@pytest.fixture
def at_now(monkeypatch):
    monkeypatch.setattr(time, "time", lambda: NOW)


def modified(*ages):
    times = [None if age is None else int((NOW - age) * 1e6) for age in ages]
    return pa.chunked_array([pa.array(times, pa.timestamp("us", tz="UTC"))])


def filled(latency):
    """Bucket's upper bound -> values, of the buckets that have any."""
    figures = latency.figures()
    bounds = (*figures.bounds, float("inf"))
    return {bound: count for bound, count in zip(bounds, figures.counts, strict=True) if count}


@pytest.mark.usefixtures("at_now")
def test_a_row_is_late_since_its_file_was_written():
    latency = Latency()
    latency.committed(modified(4.0, 40.0, 5.0, 1e7), rows=4, seconds=1.0)
    assert filled(latency) == {5.0: 2, 45.0: 1, float("inf"): 1}
    assert latency.figures().total == pytest.approx(4 + 40 + 5 + 1e7)


@pytest.mark.usefixtures("at_now")
def test_files_from_the_future_are_not_late():
    latency = Latency()
    latency.committed(modified(-60.0), rows=1, seconds=1.0)
    assert filled(latency) == {1.0: 1}


@pytest.mark.usefixtures("at_now")
def test_rows_of_files_of_many_are_spread_evenly_and_files_without_a_time_are_passed_over():
    latency = Latency()
    latency.committed(modified(4.0, None, 40.0), rows=11, seconds=1.0)
    counts = filled(latency)
    assert sum(counts.values()) == 11
    assert set(counts) == {5.0, 45.0}
    assert sorted(counts.values()) == [5, 6]


def test_rows_of_a_table_arrive_when_their_batch_begins():
    latency = Latency()
    latency.committed(None, rows=3, seconds=2.5)
    latency.committed(None, rows=2, seconds=9.0)
    assert filled(latency) == {3.0: 3, 10.0: 2}


def test_nothing_committed_is_nothing_seen():
    latency = Latency()
    latency.committed(modified(None), rows=0, seconds=1.0)
    latency.committed(None, rows=0, seconds=1.0)
    assert filled(latency) == {}


def test_what_was_given_out_does_not_change():
    latency = Latency()
    before = latency.figures()
    latency.committed(None, rows=3, seconds=2.5)
    assert before.count == 0
    assert latency.figures().count == 3
