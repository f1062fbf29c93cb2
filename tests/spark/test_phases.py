"""What Spark's own pages say of a run: they show what the status store holds."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sparkinfer.driver.job import run_job
from sparkinfer.driver.phases import Phases
from tests.executor.chain import png_of
from tests.spark.test_job import job

pytestmark = pytest.mark.spark


def shown(spark: SparkSession, group: str) -> dict[str, set[str]]:
    """Description of every job of a group -> the names of its stages."""
    context = spark.sparkContext
    tracker, store = context.statusTracker(), context._jsc.sc().statusStore()
    found: dict[str, set[str]] = {}
    for number in tracker.getJobIdsForGroup(group):
        description = store.job(number).description().get()
        stages = (tracker.getStageInfo(stage) for stage in tracker.getJobInfo(number).stageIds)
        found.setdefault(description, set()).update(stage.name for stage in stages if stage is not None)
    return found


def test_jobs_and_stages_are_named_after_phase_and_run(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(str(number), png_of(200, 10, 20)) for number in range(4)]
    spark.createDataFrame(rows, "path string, content binary").write.parquet(str(tmp_path / "in"))
    spec = job(tmp_path, {"parquet": str(tmp_path / "in")}, name="colours", report=str(tmp_path / "report"))
    run = run_job(spec).run_id
    found = shown(spark, f"sparkinfer-{run}")
    for phase in ("schema", "predict and write", "report"):
        assert found[f"colours: {phase} (run {run})"] == {phase}
    assert {name.split(" (run ")[0] for name in found} <= {
        "colours: schema",
        "colours: sharding",
        "colours: predict and write",
        "colours: report",
    }


def test_snapshots_are_numbered(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / "photos").mkdir(exist_ok=True)
        (tmp_path / "photos" / f"{number}.png").write_bytes(png_of(200, 10, number))
    resume = {"checkpoint": str(tmp_path / "checkpoint"), "snapshot_every": "2 files"}
    run = run_job(job(tmp_path, {"images": str(tmp_path / "photos")}, resume=resume, name="colours")).run_id
    found = shown(spark, f"sparkinfer-{run}")
    for number in (0, 1):
        assert found[f"colours: predict and write, snapshot {number} (run {run})"] == {
            f"predict and write, snapshot {number}"
        }


def test_what_was_set_before_comes_back(spark: SparkSession) -> None:
    context = spark.sparkContext
    context.setJobGroup("notebook", "cell 7")
    try:
        phases = Phases(spark, "job", "r1")
        with phases.phase("outer"), phases.phase("inner", "part 2"):
            assert context.getLocalProperty("spark.job.description") == "job: inner, part 2 (run r1)"
            assert context.getLocalProperty("spark.jobGroup.id") == "notebook"  # by which it stops its jobs
        assert context.getLocalProperty("spark.job.description") == "cell 7"
    finally:
        for key in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            context.setLocalProperty(key, None)
    with phases.phase("alone"):
        assert context.getLocalProperty("spark.jobGroup.id") == "sparkinfer-r1"
    assert [context.getLocalProperty(key) for key in ("spark.jobGroup.id", "callSite.short")] == [None, None]
    assert list(phases.seconds) == ["inner", "outer", "alone"]
