"""A task that fails with the same error of ours again ends the run; Spark alone would wait for its last attempt."""

from __future__ import annotations

import threading

import pytest
from pyspark import TaskContext

from sparkinfer.core.errors import ModelError
from sparkinfer.driver.watching import live as live_module
from sparkinfer.driver.watching.live import LiveRun

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def _looks_are_frequent(monkeypatch):
    monkeypatch.setattr(live_module, "INTERVAL_S", 0.05)


def watched(spark, work):
    """Runs a task under watch."""
    with LiveRun(spark, "run-1") as live, live.watching(None, rows=1, known={}, before=None):
        spark.range(0, 1, 1, 1).mapInArrow(work, "id bigint").collect()


def attempt_number():
    context = TaskContext.get()
    assert context is not None
    return context.attemptNumber()


def test_the_same_error_twice_ends_the_run(spark):
    def work(batches):
        if attempt_number() < 2:
            raise ModelError("the answers are wrong", key="model.path", hint="export it again")
        threading.Event().wait()
        yield from batches

    with pytest.raises(ModelError, match="the answers are wrong") as found:
        watched(spark, work)
    assert (found.value.key, found.value.hint) == ("model.path", "export it again")


@pytest.mark.parametrize("kind", [ModelError, RuntimeError])
def test_what_may_be_one_bad_nodes_fault_is_tried_again(spark, kind):
    """Once an error of ours; or others, however often."""

    def work(batches):
        if attempt_number() < (1 if kind is ModelError else 3):
            raise kind("bad luck")
        yield from batches

    watched(spark, work)
