"""Sending figures: what arrives at a socket, and that a task does not notice when nobody takes it."""

from __future__ import annotations

import logging
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import zmq

from sparkinfer.core.telemetry import TaskState, unpack
from sparkinfer.executor import engines, taskcontext, telemetry
from sparkinfer.executor.telemetry import TelemetryTarget, metered
from tests.executor.chain import batch, fake_plan, png_of

RED = png_of(200, 10, 20)
TOKEN = bytes(range(32))
PATIENCE_MS = 30_000
"""Until a message that must come counts as lost."""


class Driver:
    """A socket that takes messages."""

    def __init__(self, context, run_id):
        self.socket = context.socket(zmq.PULL)
        port = self.socket.bind_to_random_port("tcp://127.0.0.1")
        self.target = TelemetryTarget(run_id, f"tcp://127.0.0.1:{port}", TOKEN, interval_s=0.01)

    def next(self):
        assert self.socket.poll(PATIENCE_MS), "no message came"
        return unpack(self.socket.recv(), TOKEN)

    def until(self, is_it):
        """The first message of that kind, and those before it."""
        seen = [self.next()]
        while not is_it(seen[-1]):
            seen.append(self.next())
        return seen


@pytest.fixture
def driver(request):
    context = zmq.Context()
    yield Driver(context, request.node.name)
    context.destroy(0)


@pytest.fixture
def task(monkeypatch):
    """Plays Spark's task context: sets which attempt runs."""

    def runs(attempt, partition=0):
        monkeypatch.setattr(taskcontext, "task_attempt_id", lambda: attempt)
        monkeypatch.setattr(taskcontext, "partition_id", lambda: partition)

    return runs


def predictions(plan, *batches):
    return [row for out in engines.run_arrow(plan, iter(batches)) for row in out.to_pylist()]


def test_the_end_of_a_task_tells_everything(tmp_path, driver, task):
    task(attempt=31, partition=5)
    plan = fake_plan(tmp_path, telemetry=driver.target, cores=2)
    assert len(predictions(plan, batch(RED, b"", None), batch(RED, first=3))) == 4
    messages = driver.until(lambda m: m.state is TaskState.ENDED)
    last = messages[-1]
    assert (last.run_id, last.partition, last.attempt, last.engine, last.cores) == (
        driver.target.run_id,
        5,
        31,
        "arrow",
        2,
    )
    assert (last.figures.rows, last.figures.errors) == (4, {"EMPTY": 1, "NULL_CONTENT": 1})
    assert (last.figures.image_bytes, last.batch_size, last.device.name) == (2 * len(RED), 4, "cpu")
    assert last.figures.stages["write"].count == 2
    assert [m.sequence for m in messages] == list(range(1, len(messages) + 1))
    assert all(m.state is TaskState.RUNNING for m in messages[:-1])


def test_figures_come_while_a_task_runs(tmp_path, driver, task):
    """The task's second batch comes only when the driver has heard of the first."""
    task(attempt=32)

    def source():
        yield batch(RED, RED)
        driver.until(lambda m: m.figures.rows == 2)
        yield batch(RED, first=2)

    plan = fake_plan(tmp_path, telemetry=driver.target, size=2)
    assert len(list(engines.run_arrow(plan, source()))) == 2
    assert driver.until(lambda m: m.state is TaskState.ENDED)[-1].figures.rows == 3


def test_a_task_that_raises_has_failed(tmp_path, driver, task):
    task(attempt=33)

    def source():
        yield batch(RED)
        raise OSError("the input broke")

    plan = fake_plan(tmp_path, telemetry=driver.target)
    with pytest.raises(OSError, match="the input broke"):
        list(engines.run_arrow(plan, source()))
    assert driver.until(lambda m: m.state is not TaskState.RUNNING)[-1].state is TaskState.FAILED


def test_a_task_that_is_not_read_to_its_end_has_ended(tmp_path, driver, task):
    task(attempt=34)
    plan = fake_plan(tmp_path, telemetry=driver.target, size=1)
    results: Any = engines.run_arrow(plan, iter([batch(RED), batch(RED, first=1)]))
    assert next(results).num_rows == 1
    results.close()
    assert driver.until(lambda m: m.state is not TaskState.RUNNING)[-1].state is TaskState.ENDED


def test_a_guarded_task_tells_what_its_child_does(tmp_path, driver, task):
    task(attempt=35)
    plan = fake_plan(tmp_path, telemetry=driver.target, guard="always", size=2)
    assert len(predictions(plan, batch(RED, RED, b""))) == 3
    last = driver.until(lambda m: m.state is TaskState.ENDED)[-1]
    assert (last.figures.rows, last.figures.model_loads, last.figures.stages["decode"].count) == (3, 1, 2)


def test_pandas_tells_the_same(tmp_path, driver, task):
    task(attempt=36)
    plan = fake_plan(tmp_path, telemetry=driver.target)
    frame = pa.Table.from_batches([batch(RED, b"", None)]).to_pandas()
    assert [len(f) for f in engines.run_pandas(plan, iter([frame]))] == [3]
    last = driver.until(lambda m: m.state is TaskState.ENDED)[-1]
    assert (last.engine, last.figures.rows, last.figures.failed) == ("pandas", 3, 2)


def test_calls_of_a_batch_udf_are_one_task_while_they_are_one_attempt(tmp_path, driver, task):
    predict = engines.make_predict_fn(fake_plan(tmp_path, telemetry=driver.target))
    task(attempt=37)
    predict(np.array([RED, b""], object))
    predict(np.array([RED], object))
    both = driver.until(lambda m: m.figures.rows == 3)[-1]
    assert (both.attempt, both.state, both.engine) == (37, TaskState.RUNNING, "predict_batch_udf")
    assert both.figures.errors == {"EMPTY": 1}
    task(attempt=38)
    predict(np.array([RED], object))
    assert driver.until(lambda m: m.attempt == 38 and m.figures.rows)[-1].figures.rows == 1


def test_a_process_serves_one_driver_after_the_other(tmp_path, driver, task):
    task(attempt=39)
    predictions(fake_plan(tmp_path, telemetry=driver.target), batch(RED))
    driver.until(lambda m: m.state is TaskState.ENDED)
    with zmq.Context() as context:
        other = Driver(context, "another run")
        predictions(fake_plan(tmp_path, telemetry=other.target), batch(RED, RED))
        last = other.until(lambda m: m.state is TaskState.ENDED)[-1]
        other.socket.close(0)
    assert (last.run_id, last.figures.rows) == ("another run", 2)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "tcp://host.invalid:1", "no address at all"])
def test_a_driver_that_is_not_there_is_not_waited_for(tmp_path, address):
    target = TelemetryTarget("lost", address, TOKEN, interval_s=0.001)
    plan = fake_plan(tmp_path, telemetry=target)
    for _ in range(3 * telemetry.QUEUED_MESSAGES):
        assert [row["label"] for row in predictions(plan, batch(RED))] == ["red"]


def test_a_driver_that_does_not_read_is_not_waited_for(tmp_path, driver):
    """Its queue and ours fill up; nothing is read until all tasks have ended."""
    driver.socket.setsockopt(zmq.RCVHWM, 1)
    for number in range(500):
        with metered(driver.target, "arrow", 1) as meter:
            meter.settled(number, {})
    assert driver.next().run_id == driver.target.run_id


def test_a_driver_that_goes_away_is_not_waited_for(tmp_path, driver):
    plan = fake_plan(tmp_path, telemetry=driver.target, size=1)

    def source():
        yield batch(RED)
        driver.next()
        driver.socket.close(0)
        for number in range(1, 50):
            yield batch(RED, first=number)

    assert sum(out.num_rows for out in engines.run_arrow(plan, source())) == 50


def test_without_pyzmq_a_task_says_so_and_goes_on(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "zmq", None)
    link = telemetry._Link()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            link.send("tcp://127.0.0.1:10", b"figures")
    (record,) = caplog.records  # once, not for every message
    assert "this process sends no live figures" in record.getMessage()
    assert "zmq" in record.getMessage()
    target = TelemetryTarget("none", "tcp://127.0.0.1:11", TOKEN, interval_s=0.001)
    assert len(predictions(fake_plan(tmp_path, telemetry=target), batch(RED))) == 1


def test_without_a_target_nothing_is_sent(tmp_path, monkeypatch):
    monkeypatch.setattr(telemetry, "_reporter", None)  # whoever used it would fail
    assert len(predictions(fake_plan(tmp_path), batch(RED))) == 1


def test_the_token_is_in_no_message_and_no_log(tmp_path, driver):
    plan = fake_plan(tmp_path, telemetry=driver.target)
    predictions(plan, batch(RED))
    assert driver.socket.poll(PATIENCE_MS)
    assert TOKEN not in driver.socket.recv()
    shown = f"{plan!r} {driver.target!r} {replace(plan, cores=3)}"
    assert "token=" not in shown
    assert repr(TOKEN)[2:-1] not in shown
