"""Figures arrive on a real Spark while tasks run, count once whatever happens, and their absence harms nobody."""

from __future__ import annotations

import io
import os
import threading
from pathlib import Path

import pytest
from pyspark.sql import functions as F
from rich.console import Console

from sparkinfer.core.spec import SinkSpec
from sparkinfer.driver.frames import settings
from sparkinfer.driver.job import run_job
from sparkinfer.driver.predict import results, stamped
from sparkinfer.driver.watching import live as live_module
from sparkinfer.driver.watching.live import LiveRun
from sparkinfer.driver.write import write
from sparkinfer.executor.report import Tally
from tests.executor.chain import png_of
from tests.images import encode, noise
from tests.spark.models import fake_model
from tests.spark.test_job import job

pytestmark = pytest.mark.spark

GOOD = png_of(200, 10, 20)
LARGE = encode(noise((96, 96)), "PNG")
"""Spark passes rows on when they fill its buffer of 64 kB."""
PATIENCE_S = 60


@pytest.fixture(autouse=True)
def _looks_are_frequent(monkeypatch):
    monkeypatch.setattr(live_module, "INTERVAL_S", 0.05)


def predict(spark, folder, content, live_pass, engine, *, rows, tasks, batch_rows=64):
    """Predicts and writes `rows` rows in `tasks` tasks, which get `batch_rows` at once."""
    model = fake_model(folder)
    images = spark.range(0, rows, 1, tasks).select(F.concat(F.lit("p"), "id").alias("path"), content.alias("content"))
    plan = model.plan(spark, content="content", keys=("path",), counts=live_pass.counts, telemetry=live_pass.target)
    table = stamped(results(images, plan, engine), model.inspected, "run-1")
    with settings(spark, {"spark.sql.execution.arrow.maxRecordsPerBatch": str(batch_rows)}):
        write(table, SinkSpec(path=str(folder / "out")), "run-1")


def eventually(is_so, telemetry):
    """Waits for a snapshot like that; the figures come from another process."""
    for _ in range(PATIENCE_S * 20):
        now = telemetry.snapshot()
        if is_so(now):
            return now
        threading.Event().wait(0.05)
    raise AssertionError(f"never came: {telemetry.snapshot()}")


def waits_for(gate: Path, from_row: int):
    """Content of rows: from a row on, each waits until somebody writes into the gate, a FIFO."""
    os.mkfifo(gate)
    name = str(gate)

    def content(number):
        if number < from_row:
            return b"" if number == 1 else LARGE
        return Path(name).read_bytes()

    return F.udf(content, "binary")("id")


@pytest.mark.parametrize("engine", ["arrow", "pandas", "predict_batch_udf"])
def test_figures_come_while_the_only_task_runs(spark, tmp_path, engine):
    """Spark itself would tell nothing before this task ends; and it ends only when the driver has heard of it."""
    content = waits_for(tmp_path / "gate", from_row=128)
    failure = []

    def work():
        try:
            predict(spark, tmp_path, content, live_pass, engine, rows=129, tasks=1)
        except Exception as error:  # noqa: BLE001
            failure.append(error)

    with LiveRun(spark, "run-1") as live, live.watching(None, rows=129, known={}, before=None) as live_pass:
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            seen = eventually(lambda now: now.rows >= 64, live.telemetry)
            ended = live_pass.counts.value.rows
        finally:  # in a thread: nobody may be there to read
            threading.Thread(target=(tmp_path / "gate").write_bytes, args=(GOOD,), daemon=True).start()
        assert ended == 0
        assert (seen.errors, seen.total_rows, seen.note) == ({"EMPTY": 1}, 129, None)
        assert seen.figures.batch_images.total >= 32
        thread.join(PATIENCE_S)
        assert not failure
        assert eventually(lambda now: now.rows == 129, live.telemetry).errors == {"EMPTY": 1}
        live_pass.settle(Tally(129, {"EMPTY": 1}))
    assert live.telemetry.snapshot().rejected == 0


def test_an_attempt_that_fails_counts_once(spark, tmp_path):
    """The first attempt at one of two tasks raises after its rows."""
    marker = tmp_path / "failed once"
    name = str(marker)

    def content(number):
        if number == 30 and not Path(name).exists():
            Path(name).touch()
            raise OSError("only once")
        return b"" if number % 10 == 0 else GOOD

    with (
        LiveRun(spark, "run-1") as live,
        live.watching(None, rows=60, known={"READ_FAILED": 1}, before=None) as watched,
    ):
        predict(spark, tmp_path, F.udf(content, "binary")("id"), watched, "arrow", rows=60, tasks=2, batch_rows=8)
        seen = eventually(lambda now: now.rows == 61 and now.tasks.done == 2, live.telemetry)
    assert marker.exists()
    assert seen.errors == {"EMPTY": 6, "READ_FAILED": 1}
    assert (seen.tasks.failed, seen.tasks.total, seen.tasks.running) == (1, 2, 0)


@pytest.mark.parametrize("way", ["off", "no pyzmq here", "none on the executors"])
def test_without_messages_rows_come_as_tasks_end(spark, tmp_path, monkeypatch, way):
    if way == "no pyzmq here":
        monkeypatch.setitem(__import__("sys").modules, "zmq", None)
    monkeypatch.setattr(live_module, "PATIENCE_S", 0.1)
    with (
        LiveRun(spark, "run-1", messages=way != "off") as live,
        live.watching(None, rows=20, known={}, before=None) as watched,
    ):
        if way == "none on the executors":
            watched.target = None  # nobody sends
        else:
            assert watched.target is None
        predict(spark, tmp_path, F.lit(GOOD), watched, "arrow", rows=20, tasks=2)
        seen = eventually(lambda now: now.rows == 20 and now.note, live.telemetry)
    said = {
        "off": "progress.live is off",
        "no pyzmq here": "pyzmq",
        "none on the executors": "no task's messages reach",
    }
    assert said[way] in seen.note
    assert "rows are counted as tasks end" in seen.note


def test_a_job_tells_how_it_goes(spark, tmp_path):
    """A plain job in a terminal, then its failed rows again, without one."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(40):
        (folder / f"{number}.png").write_bytes(png_of(200, number, 20) if number % 4 else b"no image")
    spec = job(tmp_path, {"images": str(folder)}, progress={"every": "0.01s"})
    terminal = io.StringIO()
    result = run_job(spec, Console(file=terminal, force_terminal=True, width=120, color_system=None))
    assert (result.rows, result.errors) == (40, {"UNSUPPORTED_FORMAT": 10})
    assert "40 of 40 rows (100 %)" in terminal.getvalue()
    assert "10 errors (25 %): 10 UNSUPPORTED_FORMAT" in terminal.getvalue()
    lines = io.StringIO()
    again = run_job(spec, Console(file=lines, width=120), retry_codes=())
    assert again.retried == 10
    told = [line for line in lines.getvalue().splitlines() if line.startswith("progress")]
    assert told
    assert " of 10 rows (" in told[-1]


def test_snapshots_add_up(spark, tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(6):
        (folder / f"{number}.png").write_bytes(png_of(200, number, 20) if number else b"")
    resume = {"checkpoint": str(tmp_path / "checkpoint"), "snapshot_every": "2 files"}
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=120, color_system=None)
    assert run_job(job(tmp_path, {"images": str(folder)}, resume=resume), console).rows == 6
    assert "6 of 6 rows (100 %)" in out.getvalue()
    assert "1 error (17 %): 1 EMPTY" in out.getvalue()
