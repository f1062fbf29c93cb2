"""What one attempt at a task counts and times, by the chain's own runs and by a clock of our own."""

from __future__ import annotations

from unittest import mock

import pytest

from sparkinfer.core.telemetry import Reading
from sparkinfer.executor import batching, guard, meter, model_cache
from sparkinfer.executor.decode import decode
from sparkinfer.executor.meter import Meter
from sparkinfer.executor.task import run_task
from tests.executor.chain import RAW, batch, fake_plan, png_of
from tests.executor.test_guard import DEADLY

GOOD = [png_of(10 + 3 * i, 200 - 3 * i, 5) for i in range(10)]
NOT_AN_IMAGE = b"no image, but bytes"


@pytest.fixture(autouse=True)
def _nothing_is_left():
    yield
    guard.close_idle()


@pytest.fixture
def clock(monkeypatch):
    """Sets the time that the meter sees."""
    now = [0.0]
    monkeypatch.setattr(meter, "perf_counter", lambda: now[0])

    def set_time(seconds):
        now[0] = seconds

    return set_time


def figures_of(plan, *batches):
    told = Meter()
    list(run_task(iter(batches), plan, told))
    return told.read()


@pytest.mark.parametrize("options", [{"cores": 1}, {"cores": 3}, {"guard": "always"}, {"guard": "always", "cores": 2}])
def test_the_chain_is_counted(tmp_path, options):
    """Ten good images, one that is none, one empty, one null; model batches of four slots."""
    contents = [*GOOD, NOT_AN_IMAGE, b"", None]
    reading = figures_of(fake_plan(tmp_path, size=4, **options), batch(*contents[:6]), batch(*contents[6:], first=6))
    seen = reading.figures
    assert (seen.rows, seen.errors) == (13, {"UNSUPPORTED_FORMAT": 1, "EMPTY": 1, "NULL_CONTENT": 1})
    assert seen.image_bytes == sum(map(len, GOOD)) + len(NOT_AN_IMAGE)
    assert seen.stages["decode"].count == 11  # neither the empty one nor null is handed to the decoder
    assert seen.stages["preprocess"].count == 10
    assert seen.stages["read"].count == 2
    # Slots 0 to 3, 4 to 7, and 8 to 11 with two that failed; the guarded child gets its input in the same batches.
    assert seen.stages["infer"].count == seen.batch_images.count == 3
    assert (seen.batch_images.counts[2], seen.batch_images.counts[1], seen.batch_images.total) == (2, 1, 10)
    assert seen.busy_seconds == pytest.approx(seen.stages["infer"].total)
    assert (seen.model_loads, seen.oom_halvings) == (1, 0)
    assert seen.model_load_seconds > 0
    assert (reading.device, reading.batch_size) == ("cpu", 4)
    assert (seen.stages["wait"].count > 0) == (options not in ({"cores": 1}, {"guard": "always"}))


def test_rows_count_as_soon_as_the_model_has_answered(tmp_path):
    """Four rows of a batch of ten are settled while it waits for the others, and the model's failures with them."""
    plan, told, seen = fake_plan(tmp_path, size=4, cores=1, fail_on=[90.0]), Meter(), []
    images = [png_of(90, 90, 90), *GOOD[:9]]

    def look(content, *_):
        seen.append(told.read().figures.rows)
        return decode(content, RAW)

    with mock.patch.object(batching, "decoder_of", return_value=look):
        list(run_task(iter([batch(*images)]), plan, told))
    assert seen == [0] * 4 + [4] * 4 + [8] * 2
    assert (told.read().figures.rows, told.read().figures.errors) == (10, {"MODEL_FAILED": 1})


def test_a_model_that_is_open_is_not_loaded_again(tmp_path):
    plan = fake_plan(tmp_path)
    assert [figures_of(plan, batch(GOOD[0])).figures.model_loads for _ in range(3)] == [1, 0, 0]
    assert model_cache.loads() >= 1


def test_halvings_are_counted_as_often_as_the_size_falls(tmp_path):
    """Eight do not fit, nor four; two do."""
    seen = figures_of(fake_plan(tmp_path, size=8, memory_limit_images=2), batch(*GOOD[:8])).figures
    assert seen.oom_halvings == 2


def test_a_child_that_dies_is_counted_as_far_as_it_told(tmp_path):
    """The poison row is found; the model is opened again after it."""
    plan = fake_plan(tmp_path, guard="always", preprocess=DEADLY, size=1, crash_on=[90.0])
    told = Meter()
    out = list(run_task(iter([batch(GOOD[0], png_of(90, 90, 90), GOOD[1])]), plan, told))
    assert [row["error_code"] for b in out for row in b.to_pylist()] == [None, "WORKER_CRASHED", None]
    seen = told.read().figures
    assert seen.model_loads >= 1
    assert (seen.rows, seen.errors) == (3, {"WORKER_CRASHED": 1})


def test_stages_by_the_clock(clock):
    told = Meter()

    def source():
        for seconds in (2.0, 5.0):
            clock(seconds)
            yield seconds

    passed = []
    for seconds in told.reading(source()):
        passed.append(seconds)
        clock(seconds + 1)  # the chain's own time is no reading
    for _ in told.writing([1, 2, 3]):
        clock(told_now := 10.0 + len(passed))
        passed.append(told_now)
    seen = told.read().figures.stages
    assert (seen["read"].count, seen["read"].total) == (2, 2.0 + 2.0)
    assert (seen["write"].count, seen["write"].total) == (3, 6.0 + 1.0 + 1.0)


def test_busy_is_the_time_in_which_any_call_runs_and_waiting_the_time_in_which_none_does(clock):
    told = Meter()
    clock(1)
    with told.inferring(4):
        clock(3)
        with told.inferring(4):  # a second thread: the next batch is uploaded while this one is computed
            clock(4)
        clock(6)
    clock(10)
    with told.inferring(2):
        clock(11)
    seen = told.read().figures
    assert seen.busy_seconds == 5 + 1
    assert (seen.stages["infer"].count, seen.stages["infer"].total) == (3, 5 + 1 + 1)
    assert (seen.stages["wait"].count, seen.stages["wait"].total) == (2, 1 + 4)
    assert seen.batch_images.total == 10


def test_opening_the_model_is_no_waiting_for_images(clock):
    told = Meter()
    clock(2)
    with told.loading():
        clock(9)
    clock(10)
    with told.inferring(1):
        clock(11)
    seen = told.read().figures
    assert (seen.model_loads, seen.model_load_seconds) == (1, 7)
    assert seen.stages["wait"].total == 1


def test_a_call_that_raises_is_counted_and_a_load_that_raises_is_not():
    told = Meter()
    with pytest.raises(RuntimeError), told.inferring(3):
        raise RuntimeError
    with pytest.raises(RuntimeError), told.loading():
        raise RuntimeError
    seen = told.read().figures
    assert (seen.batch_images.total, seen.model_loads) == (3, 0)


def test_what_a_child_takes_off_its_worker_adds():
    child, worker = Meter(), Meter()
    for rows in (3, 4):
        child.settled(rows, {"EMPTY": 1})
        child.decoded([(100, 0.5, 0.25)], batch_size=8)
        child.chosen("cuda:1")
        worker.add(Reading.from_json(child.take().to_json()))
    assert child.take().figures.rows == 0
    reading = worker.read()
    assert (reading.figures.rows, reading.figures.errors) == (0, {})  # the worker counts what it hands on
    assert (reading.figures.image_bytes, reading.figures.stages["preprocess"].total) == (200, 0.5)
    assert (reading.device, reading.batch_size) == ("cuda:1", 8)
