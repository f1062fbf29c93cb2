"""Hopeless jobs stop early, and counts are exact, on a real Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from sparkinfer.core.errors import BudgetExceededError
from sparkinfer.core.spec import ErrorsSpec, SinkSpec
from sparkinfer.driver.budget import Budget
from sparkinfer.driver.predict import results, stamped
from sparkinfer.driver.write import write
from sparkinfer.executor.report import Tally
from tests.chaos.standalone import Cluster
from tests.executor.chain import png_of
from tests.spark.models import fake_model

pytestmark = pytest.mark.spark

ENGINES = ["arrow", "pandas", "predict_batch_udf"]


def run(spark, folder, content, counts, engine, *, rows, tasks):
    """Predicts and writes `rows` rows in `tasks` tasks."""
    model = fake_model(folder)
    numbered = spark.range(0, rows, 1, tasks)
    images = numbered.select(F.concat(F.lit("p"), "id").alias("path"), content.alias("content"))
    plan = replace(model.plan(spark, content="content", keys=("path",)), counts=counts)
    table = stamped(results(images, plan, engine), model.inspected, "run-1")
    write(table, SinkSpec(path=str(folder / "out")), "run-1")


def bad_then_waiting(folder, bad, count):
    """Content of rows: the first `count` are bad, each other one waits for ever."""
    fifo = str(folder / "fifo")
    os.mkfifo(fifo)
    return F.udf(lambda number: bad if number < count else Path(fifo).read_bytes(), "binary")("id")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_hopeless_job_is_stopped(spark, tmp_path, engine):
    """Twenty tasks fail at once; the others wait for ever, and would hang this test if nobody stopped them."""
    content = bad_then_waiting(tmp_path, b"no image", 2_000)
    budget = Budget(ErrorsSpec(max_fraction=0.5))
    with (
        pytest.raises(BudgetExceededError) as caught,
        budget.watching(spark, str(tmp_path / "out"), rows=4_000, tasks=40) as counts,
    ):
        run(spark, tmp_path, content, counts, engine, rows=4_000, tasks=40)
    error = caught.value
    assert (error.key, error.exit_status) == ("errors.max_fraction", 3)
    figures, sample = error.message.splitlines()
    seen = int(figures.removeprefix("stopped early after ").split(" of ")[0].replace(",", ""))
    assert figures == f"stopped early after {seen:,} of 4,000 rows: {seen:,} failed, allowed is a share of 0.5"
    assert seen == 1_000  # ten tasks, of one hundred rows each
    assert sample.startswith(f"    {seen:,} x UNSUPPORTED_FORMAT")
    assert ("for example p" in sample) == (engine == "arrow")
    assert "nothing was written" in str(error.hint)
    assert not (tmp_path / "out").exists()
    # The session goes on working, untagged.
    assert spark.range(10).count() == 10


@pytest.mark.parametrize("engine", ENGINES)
def test_a_bad_start_is_no_hopeless_job(spark, tmp_path, engine):
    good = png_of(200, 10, 20)
    content = F.when(F.col("id") < 64, F.lit(b"")).otherwise(F.lit(good))
    with Budget(ErrorsSpec(max_fraction=0.5)).watching(spark, "out", tasks=6) as counts:
        run(spark, tmp_path, content, counts, engine, rows=192, tasks=6)
    table = spark.read.parquet(str(tmp_path / "out"))
    assert (table.count(), table.where("error_code = 'EMPTY'").count()) == (192, 64)
    # What was seen live is what was written.
    live: Tally = counts.value
    assert (live.rows, live.errors, sorted(live.attempts)) == (192, {"EMPTY": 64}, [0, 1, 2, 3, 4, 5])


def test_a_number_of_rows_is_a_limit_too_and_earlier_jobs_count(spark, tmp_path):
    budget = Budget(ErrorsSpec(max_fraction=1, max_rows=10))
    content = bad_then_waiting(tmp_path, b"", 10)
    before = Tally(990, {"TIMEOUT": 4}, {"TIMEOUT": "p-1"})
    with pytest.raises(BudgetExceededError) as caught, budget.watching(spark, "out", before=before) as counts:
        run(spark, tmp_path, content, counts, "arrow", rows=30, tasks=3)
    assert caught.value.key == "errors.max_rows"
    assert caught.value.message == (
        "stopped early after 1,000 rows: 14 failed, allowed are 10\n"
        "    10 x EMPTY, for example p0\n    4 x TIMEOUT, for example p-1"
    )
    assert "what was finished stays" in str(caught.value.hint)


def test_another_failure_is_not_mistaken_for_a_verdict(spark):
    with pytest.raises(ZeroDivisionError), Budget(ErrorsSpec(max_rows=0)).watching(spark, "out"):
        raise ZeroDivisionError


def test_without_a_limit_nothing_is_watched(spark):
    with Budget(ErrorsSpec(max_fraction=1)).watching(spark, "out") as counts:
        assert counts is None


@pytest.mark.cluster
@pytest.mark.slow
def test_counts_are_exact_through_retries_and_speculation(tmp_path):
    """Two nodes; the first attempt at two tasks raises after its rows, that at a third never ends."""
    (tmp_path / "properties").touch()
    script, root = Path(__file__).with_name("exact_counts.py"), Path(__file__).parents[2]
    # Spark runs no task twice on one host: a local cluster will not do.
    with Cluster(tmp_path / "cluster", tmp_path / "properties") as cluster:
        done = subprocess.run(
            [sys.executable, str(script), str(tmp_path), cluster.url],
            check=False,
            capture_output=True,
            text=True,
            env={**cluster.environment(), "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])},
            cwd=root,
            timeout=200,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "result.json").read_text())
    assert found["table"] == {"rows": 240, "errors": {"EMPTY": 60, "UNSUPPORTED_FORMAT": 30}}
    assert found["job"] == found["table"]
    assert found["distinct"] == 240
    assert found["raised"] >= 2
    assert found["speculative"] >= 1
