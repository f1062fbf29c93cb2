"""What `plan` says against what a run does, and what Spark says."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sparkinfer.core.spec import JobSpec, SourceSpec
from sparkinfer.driver.frames import settings
from sparkinfer.driver.job import run_job
from sparkinfer.driver.plan import make_plan
from sparkinfer.driver.planning.input import find_local
from sparkinfer.driver.read import read_source
from sparkinfer.driver.shard import shard
from sparkinfer.driver.shard import spark_split_settings as split_of
from tests.executor.chain import RAW
from tests.images import good_image
from tests.spark.models import fake_model_file

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """60 files of 300 bytes to 300 kB, two of which are hidden, in two folders."""
    folder = tmp_path_factory.mktemp("photos")
    (folder / "b c").mkdir()
    sizes = (300 * 10 ** np.random.default_rng(0).uniform(0, 3, 60)).astype(int)
    for number, size in enumerate(sizes):
        (folder / ("b c" if number % 3 else ".") / f"{'_' if number > 57 else ''}{number}.jpg").write_bytes(b"x" * size)
    return folder


def job(tmp_path, **source):
    return JobSpec.model_validate(
        {
            "source": source,
            "model": {"path": str(fake_model_file(tmp_path))},
            "preprocess": RAW,
            "postprocess": {"activation": "none", "check": False},
            "sink": {"path": str(tmp_path / "out")},
            "errors": {"max_fraction": 1},
            "report": str(tmp_path / "report"),
        }
    )


def test_plan_says_what_run_does(spark, photos, tmp_path):
    spec = job(tmp_path, images=str(photos))
    planned = make_plan(spec)
    result = run_job(spec)
    assert planned.cuts.partitions == result.partitions
    assert planned.cuts.reason == result.sharding
    assert planned.cuts.rows == result.rows == 58
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["partitions"] == planned.cuts.partitions
    for setting in planned.settings:
        if "arrow" in setting.name:
            assert spark.conf.get(setting.name) == setting.value


@pytest.mark.parametrize("mode", ["auto", "files", "bytes", "hybrid", "none"])
def test_without_spark_files_are_cut_as_with_it(spark, photos, tmp_path, mode):
    spec = job(tmp_path, images=str(photos)).model_copy(update={"sharding": mode})
    profile = tmp_path / "p.conf"
    conf = {"spark.sql.files.openCostInBytes": "20000", "spark.sql.files.maxPartitionBytes": "300kb"}
    profile.write_text("".join(f"{k} {v}\n" for k, v in {**conf, "spark.default.parallelism": "5"}.items()))
    planned = make_plan(spec, profile=str(profile))
    with settings(spark, {**conf, "spark.sql.files.minPartitionNum": "5"}):
        sharding = shard(spark, read_source(spark, spec.source), mode, 5)
    assert (planned.cuts.partitions, planned.cuts.reason) == (sharding.partitions, sharding.reason)
    assert planned.cuts.heaviest_over_mean == sharding.heaviest_over_mean


def test_local_files_are_listed_as_by_spark(spark, photos):
    for source in (
        SourceSpec(images=str(photos), limit=17),
        SourceSpec(images=[f"file:{photos}/b c", f"{photos}/../{photos.name}/0.jpg"], keep=["length"]),
    ):
        found = find_local(source)
        expected = read_source(spark, source)
        assert sorted(found.table["path"].to_pylist()) == sorted(expected.files.paths.to_pylist())
        assert Counter(found.table["length"].to_pylist()) == Counter(expected.files.lengths.tolist())
        assert (dict(found.left_out), found.keys) == (expected.left_out, expected.keys)


def test_rows_that_carry_their_bytes_are_cut_by_spark(spark, tmp_path):
    pq.write_table(
        pa.table({"path": [str(n) for n in range(50)], "content": [good_image()] * 50}), tmp_path / "a.parquet"
    )
    spec = job(tmp_path, parquet=str(tmp_path / "a.parquet"))
    planned = make_plan(spec)
    result = run_job(spec)
    assert (planned.cuts.partitions, planned.cuts.reason) == (result.partitions, result.sharding)


def test_split_settings_are_the_session_s(spark):
    conf = {"spark.sql.files.openCostInBytes": "77", "spark.sql.files.maxPartitionBytes": "1g"}
    with settings(spark, {**conf, "spark.sql.files.minPartitionNum": None}):
        found = split_of(spark)
    assert (found.open_cost, found.max_bytes, found.least) == (77, 1 << 30, spark.sparkContext.defaultParallelism)
