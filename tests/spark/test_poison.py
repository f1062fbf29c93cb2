"""Poison rows in real jobs: real deaths of Spark's Python workers, and how many attempts they cost."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sparkinfer.core.spec import JobSpec
from sparkinfer.driver.job import run_job
from tests.executor import deadly
from tests.executor.chain import png_of
from tests.spark.attempts import failed_attempts
from tests.spark.models import fake_model_file

pytestmark = pytest.mark.spark

RED = png_of(200, 10, 20)


def predict(spark: SparkSession, folder: Path, poison: dict[str, bytes], engine: str = "arrow", good: int = 40) -> dict:
    """Names of the rows and what became of them, by a job over `good` good images and some others."""
    photos = folder / "photos"
    photos.mkdir()
    for number in range(good):
        (photos / f"good{number:02}.png").write_bytes(RED)
    for name, content in poison.items():
        (photos / f"{name}.png").write_bytes(content)
    spec = JobSpec.model_validate(
        {
            "source": {"images": str(photos)},
            "model": {"path": str(fake_model_file(folder))},
            "preprocess": {
                "resize": None,
                "crop": [8, 8],
                "mean": [0],
                "std": [1],
                "rescale": 1,
                "decoder": "tests.executor.deadly:decode",
            },
            "postprocess": {"activation": "none", "check": False},
            "engine": engine,
            "sharding": "none",
            "sink": {"path": str(folder / "out")},
            "errors": {"max_fraction": 1, "row_timeout": "2 s"},
        }
    )
    result = run_job(spec)
    rows = spark.read.parquet(str(folder / "out")).collect()
    assert len(rows) == result.rows == good + len(poison)
    return {Path(row["path"]).stem: row["error_code"] or row["label"] for row in rows}


@pytest.mark.parametrize("engine", ["arrow", "pandas", "predict_batch_udf"])
def test_rows_that_kill_the_worker(spark: SparkSession, tmp_path: Path, engine: str) -> None:
    before = failed_attempts(spark)
    poison = {"segv": deadly.SEGV, "abort": deadly.ABORT, "kill": deadly.KILL, "unsayable": deadly.UNSAYABLE}
    assert predict(spark, tmp_path, poison, engine) == {
        **{f"good{number:02}": "red" for number in range(40)},
        **dict.fromkeys(poison, "WORKER_CRASHED"),
    }
    tasks = 2  # more are not made of so few bytes
    assert 1 <= failed_attempts(spark) - before <= tasks


def test_many_poison_rows_cost_one_attempt_a_partition(spark: SparkSession, tmp_path: Path) -> None:
    before = failed_attempts(spark)
    poison = {f"bad{number:02}": deadly.KILL for number in range(25)}
    outcome = predict(spark, tmp_path, poison)
    assert {name: outcome[name] for name in poison} == dict.fromkeys(poison, "WORKER_CRASHED")
    assert [outcome[f"good{number:02}"] for number in range(40)] == ["red"] * 40
    assert 1 <= failed_attempts(spark) - before <= 2


def test_a_row_that_hangs(spark: SparkSession, tmp_path: Path) -> None:
    before = failed_attempts(spark)
    outcome = predict(spark, tmp_path, {"hang": deadly.HANG}, good=5)
    assert outcome == {"hang": "TIMEOUT", **{f"good{number:02}": "red" for number in range(5)}}
    assert failed_attempts(spark) - before == 1


def test_an_error_that_cannot_be_told_costs_its_row(spark: SparkSession, tmp_path: Path) -> None:
    before = failed_attempts(spark)
    outcome = predict(spark, tmp_path, {"unsayable": deadly.UNSAYABLE}, good=5)
    assert outcome == {"unsayable": "WORKER_CRASHED", **{f"good{number:02}": "red" for number in range(5)}}
    assert failed_attempts(spark) - before == 1
