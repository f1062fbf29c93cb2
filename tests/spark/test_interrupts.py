"""Ctrl-C and SIGTERM while Spark works: the jobs end, the report is there, and nobody reads stack traces."""

from __future__ import annotations

import json
import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sparkinfer.cli import _interrupt
from sparkinfer.driver.interrupts import Interrupts, handler_kept
from sparkinfer.driver.job import run_job
from tests.executor.chain import png_of
from tests.spark.test_job import job

pytestmark = pytest.mark.spark


@contextmanager
def handled(number: int, handler) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextmanager
def signalled(number: int, when) -> Iterator[None]:
    """Sends a signal to this process as soon as something is so."""
    over = threading.Event()

    def watch():
        while not over.wait(0.05):
            if when():
                os.kill(os.getpid(), number)
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_is_stopped_leaves_a_report_and_no_stack_trace(spark, tmp_path, caplog, number):
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "red.png").write_bytes(png_of(200, 10, 20))
    spec = job(tmp_path, {"images": str(folder)}, report=str(tmp_path / "report"))
    model = tmp_path / "colours.fake"
    model.write_text(json.dumps(json.loads(model.read_text()) | {"hang_on": [200.0]}))
    tracker = spark.sparkContext.statusTracker()
    others = set(tracker.getActiveStageIds())  # of jobs that earlier tests have ended, while a task does not know yet

    def runs() -> bool:
        """The one image keeps the model busy until its time is up."""
        stages = [tracker.getStageInfo(stage) for stage in set(tracker.getActiveStageIds()) - others]
        return any(stage is not None and stage.name == "predict and write" for stage in stages)

    with handled(number, _interrupt), signalled(number, runs), pytest.raises(KeyboardInterrupt, match=number.name):
        run_job(spec)
    found = json.loads((tmp_path / "report" / "report.json").read_text())
    assert (found["state"], found["error"]["type"]) == ("failed", "KeyboardInterrupt")
    assert (found["error"]["exit_status"], found["error"]["message"]) == (128 + number, f"stopped by {number.name}")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert not (tmp_path / "out").exists()
    assert spark.range(3).count() == 3  # the session still listens


def test_who_only_notes_the_signal_is_not_disturbed(spark):
    noted = threading.Event()
    with handled(signal.SIGTERM, lambda *_: noted.set()):
        with Interrupts(spark.sparkContext, "run") as signals, signals.ending_jobs():
            os.kill(os.getpid(), signal.SIGTERM)
            assert spark.range(3).count() == 3
        assert noted.is_set()


def test_a_second_signal_does_not_wait(spark):
    with handled(signal.SIGINT, _interrupt), Interrupts(spark.sparkContext, "run") as signals, signals.ending_jobs():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_pyspark_does_not_keep_the_handler():
    def mine(*_: object) -> None: ...

    with handled(signal.SIGINT, mine):
        with handler_kept():
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a new SparkContext does with a handler of its own
        assert signal.getsignal(signal.SIGINT) is mine
