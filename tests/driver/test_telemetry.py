"""Adding up what tasks tell: one attempt of each partition counts, the work of all does; by hand."""

from __future__ import annotations

import itertools

import pytest

from sparkinfer.core.telemetry import DeviceFigures, Figures, TaskMessage, TaskState
from sparkinfer.driver.watching import telemetry as module
from sparkinfer.driver.watching.telemetry import Sample, TaskCounts, Telemetry
from sparkinfer.executor.report import Tally

RUNNING, ENDED, FAILED = TaskState.RUNNING, TaskState.ENDED, TaskState.FAILED


@pytest.fixture
def clock():
    return [100.0]


@pytest.fixture
def run(clock):
    """A run whose first pass has begun."""
    telemetry = Telemetry("run-1", lambda: clock[0])
    telemetry.begin(None, {})
    return telemetry


def told(partition, rows, *, attempt=None, sequence=1, state=RUNNING, errors=None, busy=0.0, seconds=0.0, **changes):
    attempt = partition if attempt is None else attempt
    values = {
        "run_id": "run-1",
        "pass_number": 1,
        "stage": 0,
        "partition": partition,
        "attempt": attempt,
        "attempt_number": 0,
        "host": "node",
        "pid": attempt,
        "sequence": sequence,
        "state": state,
        "started": 0.0,
        "seconds": seconds,
        "engine": "arrow",
        "cores": 1,
        "batch_size": 8,
        "figures": Figures(rows=rows, errors=errors or {}, busy_seconds=busy),
    }
    return TaskMessage(**{**values, **changes})


def test_nothing_yet():
    now = Telemetry("run-1").snapshot()
    assert (now.rows, now.errors, now.failed, now.seconds, now.total_rows) == (0, {}, 0, 0.0, None)
    assert now.busy_share_since() is None


def test_tasks_add_up_and_the_last_message_of_each_holds(run):
    run.take(told(0, 10, errors={"EMPTY": 1}))
    run.take(told(1, 5))
    run.take(told(0, 30, sequence=3, errors={"EMPTY": 2, "CORRUPT": 1}))
    run.take(told(0, 20, sequence=2, errors={"EMPTY": 9}))  # late
    run.take(told(0, 30, sequence=3, errors={"EMPTY": 9}))  # twice
    now = run.snapshot()
    assert (now.rows, now.errors, now.failed) == (35, {"EMPTY": 2, "CORRUPT": 1}, 3)
    assert (now.figures.rows, now.messages, now.rejected) == (35, 5, 0)


def test_what_comes_after_the_end_changes_nothing(run):
    run.take(told(0, 10, sequence=5, state=ENDED))
    run.take(told(0, 7, sequence=6))
    assert run.snapshot().rows == run.snapshot().figures.rows == 10


def test_of_two_attempts_the_one_that_is_furthest_counts_until_one_ends(run):
    run.take(told(0, 10, attempt=100))
    run.take(told(0, 4, attempt=101))  # speculation
    assert run.snapshot().rows == 10
    run.take(told(0, 12, attempt=101, sequence=2, errors={"TIMEOUT": 1}))
    assert (run.snapshot().rows, run.snapshot().errors) == (12, {"TIMEOUT": 1})
    run.take(told(0, 11, attempt=100, sequence=2, state=ENDED))
    run.take(told(0, 99, attempt=101, sequence=3, state=ENDED))
    assert (run.snapshot().rows, run.snapshot().errors) == (11, {})
    assert run.snapshot().figures.rows == 110  # the work of both


def test_a_failed_attempt_counts_until_the_next_is_further(run):
    run.take(told(0, 10, attempt=100, state=FAILED))
    assert run.snapshot().rows == 10
    run.take(told(0, 3, attempt=101))
    assert run.snapshot().rows == 10
    run.take(told(0, 10, attempt=101, sequence=2, state=ENDED, errors={"WORKER_CRASHED": 1}))
    assert (run.snapshot().rows, run.snapshot().errors) == (10, {"WORKER_CRASHED": 1})
    assert [(r.partition, r.state, r.rows) for r in run.records()] == [(0, FAILED, 10), (0, ENDED, 10)]


def test_a_process_that_goes_on_has_ended_what_it_ran_before(run):
    """`predict_batch_udf` does not say when a task ends."""
    run.take(told(0, 10, pid=7, seconds=4.0))
    run.take(told(1, 2, pid=7))
    run.take(told(0, 11, pid=7, sequence=2))  # cannot be
    assert run.snapshot().rows == 12
    assert [(r.partition, r.rows, r.seconds) for r in run.records()] == [(0, 10, 4.0)]


def test_another_run_or_pass_changes_nothing(run):
    run.take(told(0, 10, run_id="run-0"))
    run.take(told(0, 10, pass_number=2))
    assert run.snapshot().rows == run.snapshot().figures.rows == 0
    run.settle(Tally())
    run.take(told(0, 10))  # after its pass
    assert run.begin(None, {}) == 2
    run.take(told(0, 10))
    assert run.snapshot().rows == 0
    run.take(told(0, 5, pass_number=2))
    assert run.snapshot().rows == 5


def test_exact_counts_take_the_place_of_what_was_told(run):
    run.take(told(0, 10, state=ENDED, errors={"EMPTY": 4}))
    run.take(told(1, 3))
    run.settle(Tally(20, {"EMPTY": 5}, {"EMPTY": "p"}))
    assert (run.snapshot().rows, run.snapshot().errors) == (20, {"EMPTY": 5})
    assert run.snapshot().figures.rows == 13  # work that nobody told of is not made up
    run.begin(None, {"EMPTY": 2})
    assert (run.snapshot().rows, run.snapshot().errors) == (22, {"EMPTY": 7})
    run.take(told(0, 6, pass_number=2))
    run.settle(Tally(9, {"EMPTY": 2}))
    assert (run.snapshot().rows, run.snapshot().errors) == (29, {"EMPTY": 7})


def test_of_a_run_that_is_broken_off_only_what_is_written_counts(run):
    run.take(told(0, 10))
    run.settle(Tally(10, {"EMPTY": 1}))
    run.begin(None, {"EMPTY": 2})
    run.take(told(0, 6, pass_number=2))
    run.hear_spark(2, TaskCounts(total=3, running=1), Tally(7))
    run.break_off()
    now = run.snapshot()
    assert (now.rows, now.errors, now.tasks.running, now.broken_off) == (10, {"EMPTY": 1}, 0, True)
    assert now.figures.rows == 16  # work that was done


def test_a_run_that_is_done_is_not_broken_off(run):
    run.settle(Tally(10))
    run.break_off()
    assert (run.snapshot().rows, run.snapshot().broken_off) == (10, False)


def test_without_messages_the_rows_of_tasks_that_ended_count(run):
    tally = Tally(64, {"CORRUPT": 2})
    run.hear_spark(1, TaskCounts(total=6, done=1, running=2), tally)
    now = run.snapshot()
    assert (now.rows, now.errors, now.tasks.done) == (64, {"CORRUPT": 2}, 1)
    run.take(told(0, 65))
    assert (run.snapshot().rows, run.snapshot().errors) == (65, {})
    assert tally == Tally(64, {"CORRUPT": 2})


def test_spark_s_news_of_a_pass_that_is_over_change_nothing(run):
    run.settle(Tally(64))
    run.hear_spark(1, TaskCounts(total=6, running=2), Tally(63))
    run.begin(None, {})
    run.hear_spark(1, TaskCounts(total=6, running=2), Tally(63))
    assert (run.snapshot().rows, run.snapshot().tasks) == (64, TaskCounts())
    run.hear_spark(2, TaskCounts(total=3, running=1), Tally(7))
    assert (run.snapshot().rows, run.snapshot().tasks) == (71, TaskCounts(total=3, running=1))


def test_busy_is_a_share_of_what_tasks_took(run):
    run.take(told(0, 1, busy=2.0, seconds=10.0))
    run.take(told(1, 1, busy=4.0, seconds=10.0))
    first = run.snapshot()
    assert first.busy_share_since() == pytest.approx(0.3)
    assert first.busy_share_since(first) is None
    run.take(told(0, 1, sequence=2, busy=11.0, seconds=20.0))
    assert run.snapshot().busy_share_since(first) == pytest.approx(0.9)
    run.take(told(1, 1, sequence=2, busy=14.0, seconds=20.0, state=ENDED))
    assert run.snapshot().busy_share_since(first) == pytest.approx(0.95)


def test_time_counts_while_a_pass_runs(run, clock):
    clock[0] = 110.0
    assert (run.snapshot().seconds, run.snapshot().active_seconds) == (10.0, 10.0)
    run.settle(Tally())
    clock[0] = 150.0
    assert (run.snapshot().seconds, run.snapshot().active_seconds) == (50.0, 10.0)
    run.begin(None, {})
    clock[0] = 155.0
    assert (run.snapshot().seconds, run.snapshot().active_seconds) == (55.0, 15.0)


def test_devices_are_named_once_and_as_they_are_now(run):
    gpu = {"name": "cuda:0", "uuid": "GPU-1", "memory_total_bytes": 100}
    run.take(told(0, 1, device=DeviceFigures(**gpu, memory_used_bytes=10), batch_size=16))
    run.take(told(1, 1, device=DeviceFigures(**gpu, memory_used_bytes=30), batch_size=64))
    run.take(told(2, 1, device=DeviceFigures("cpu"), host="other"))
    now = run.snapshot()
    assert now.devices == (("node", DeviceFigures(**gpu, memory_used_bytes=30)), ("other", DeviceFigures("cpu")))
    assert now.batch_size == 64


def test_history_is_thinned_and_keeps_its_span(run, clock, monkeypatch):
    monkeypatch.setattr(module, "MAX_SAMPLES", 10)
    for second in range(1, 201):
        clock[0] = 100.0 + second
        run.take(told(0, 10 * second, sequence=second, busy=second / 2, seconds=float(second)))
        run.hear_spark(1, TaskCounts(), Tally())
    samples = run.history()
    assert 5 <= len(samples) <= 10
    assert all(sample.rows == 10 * sample.seconds for sample in samples)
    assert all(sample.busy_share == pytest.approx(0.5) for sample in samples)
    steps = [later.seconds - earlier.seconds for earlier, later in itertools.pairwise(samples)]
    assert max(steps) <= 2.5 * min(steps)
    assert samples[0].seconds <= 20
    assert samples[-1].seconds >= 160


def test_a_short_history_is_whole(run, clock):
    clock[0] = 101.0
    run.hear_spark(1, TaskCounts(), Tally(5, {"EMPTY": 1}))
    clock[0] = 102.5
    run.settle(Tally(8, {"EMPTY": 2}))
    assert run.history() == [Sample(1.0, 5, 1, None), Sample(2.5, 8, 2, None)]


def test_notes_come_and_go(run):
    run.degrade("no network")
    assert run.snapshot().note == "no network"
    run.degrade(None)
    assert run.snapshot().note is None
