"""Spark's own tasks against what sharding decided: which file went where, by asking Spark."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from sparkinfer.core.spec import SourceSpec
from sparkinfer.driver.frames import settings
from sparkinfer.driver.read import read_source
from sparkinfer.driver.shard import shard
from sparkinfer.driver.sources.inputs import FileSet
from sparkinfer.driver.splits.manifest import open_files
from sparkinfer.driver.splits.packing import LED, leading_sizes, murmur3, salts, spark_split

pytestmark = pytest.mark.spark


def tasks_of(frame):
    """Names of the files of every task, and their bytes, task by task."""
    rows = frame.select(F.spark_partition_id().alias("task"), "path", F.octet_length("content").alias("size")).collect()
    names, sizes = {}, {}
    for row in rows:
        names.setdefault(row.task, set()).add(row.path.rsplit("/", 1)[-1])
        sizes[row.task] = sizes.get(row.task, 0) + row["size"]
    return list(names.values()), np.array(list(sizes.values()))


def write_files(folder, sizes):
    for i, size in enumerate(sizes):
        (folder / f"{i}.jpg").write_bytes(b"x" * int(size))
    return [f"file:{folder}/{i}.jpg" for i in range(len(sizes))]


@pytest.fixture(scope="module")
def skewed(tmp_path_factory):
    """1,000 files whose sizes spread over three orders of magnitude."""
    folder = tmp_path_factory.mktemp("skewed")
    sizes = (100 * 10 ** np.random.default_rng(0).uniform(0, 3, 1000)).astype(np.int64)
    write_files(folder, sizes)
    return folder, sizes


@pytest.mark.parametrize("seed", range(3))
def test_spark_puts_every_file_into_the_task_that_was_decided(spark, tmp_path, seed):
    rng = np.random.default_rng(seed)
    bins = np.concatenate([np.zeros(1), np.ones(1), rng.integers(2, 9, 120), np.full(60, 9)]).astype(np.int32)
    rng.shuffle(bins)
    paths = write_files(tmp_path, rng.integers(0, 40, len(bins)))
    order, sizes = leading_sizes(bins)
    with settings(spark, LED):
        found, _ = tasks_of(open_files(spark, [paths[i] for i in order], sizes, skip_unreadable=True))
    wished = [{f"{i}.jpg" for i in np.flatnonzero(bins == task)} for task in range(10)]
    assert sorted(map(sorted, found)) == sorted(map(sorted, wished))


@pytest.mark.parametrize(("max_split", "open_cost"), [(300_000, 0), (300_000, 5_000), (100_000, 20_000)])
def test_the_simulated_split_is_spark_s_own(spark, skewed, max_split, open_cost):
    folder, sizes = skewed
    paths = pa.chunked_array([[f"file:{folder}/{i}.jpg" for i in range(len(sizes))]])
    conf = {
        "spark.sql.files.maxPartitionBytes": str(max_split),
        "spark.sql.files.openCostInBytes": str(open_cost),
        "spark.sql.files.minPartitionNum": "1",
    }
    with settings(spark, conf):
        found, _ = tasks_of(FileSet(paths, sizes, 1 << 30).open(spark))
        none = shard(spark, read_source(spark, SourceSpec(images=str(folder))), "none", 2)
    simulated = spark_split(sizes, max_split, open_cost)
    wished = [{f"{i}.jpg" for i in np.flatnonzero(simulated == task)} for task in range(simulated.max() + 1)]
    assert sorted(map(sorted, found)) == sorted(map(sorted, wished))
    assert none.partitions == len(wished)


@pytest.mark.parametrize("mode", ["auto", "bytes", "hybrid"])
@pytest.mark.parametrize("cores", [2, 16, 64])
def test_the_heaviest_task_of_a_skewed_folder_has_little_more_than_the_mean(spark, skewed, mode, cores):
    folder, sizes = skewed
    sharding = shard(spark, read_source(spark, SourceSpec(images=str(folder))), mode, cores)
    with sharding.applied(spark):
        names, found = tasks_of(sharding.content)
    assert sum(map(len, names)) == len(sizes)
    assert len(found) == sharding.partitions >= cores
    assert found.max() <= max(1.2 * found.mean(), sizes.max())
    assert sharding.heaviest_over_mean == pytest.approx(found.max() / found.mean())
    assert f"into {len(found)} tasks instead, heaviest 1.00 x the mean bytes" in sharding.reason


def test_by_count_every_task_has_the_same_number_of_files(spark, skewed):
    folder, _ = skewed
    sharding = shard(spark, read_source(spark, SourceSpec(images=str(folder))), "files", 16)
    with sharding.applied(spark):
        names, sizes = tasks_of(sharding.content)
    assert {len(task) for task in names} <= {1000 // len(names), -(-1000 // len(names))}
    assert sizes.max() <= 1.2 * sizes.mean()  # and what freedom is left goes to bytes


def test_auto_leaves_a_good_split_alone(spark, tmp_path):
    write_files(tmp_path, [1000] * 8)
    source = read_source(spark, SourceSpec(images=str(tmp_path)))
    sharding = shard(spark, source, "auto", 2)
    assert "left as it is" in sharding.reason
    assert sharding.conf == {}
    assert sharding.partitions == 2
    assert sharding.heaviest_over_mean == 1


def test_few_files_use_all_cores_and_settings_come_back(spark, tmp_path):
    write_files(tmp_path, [10, 2000, 30])
    source = read_source(spark, SourceSpec(images=str(tmp_path)))
    with settings(spark, {"spark.sql.files.openCostInBytes": "77", "spark.sql.files.maxPartitionNum": "1"}):
        sharding = shard(spark, source, "auto", 8)
        with sharding.applied(spark):
            assert sharding.content.rdd.getNumPartitions() == sharding.partitions == 3
        assert spark.conf.get("spark.sql.files.openCostInBytes") == "77"
        assert spark.conf.get("spark.sql.files.maxPartitionNum") == "1"
    assert spark.conf.get("spark.sql.files.openCostInBytes", None) is None


def test_murmur3_and_salts_are_spark_s(spark):
    values = [0, 1, 2, 41, 65_535, 65_536, 2**31 - 1]
    rows = spark.createDataFrame([(v,) for v in values], "v int").select("v", F.hash("v").alias("h")).collect()
    assert {row.v: row.h for row in rows} == {v: murmur3(v) for v in values}
    frame = spark.createDataFrame(list(enumerate(salts(13))), "bin int, salt int").repartition(13, "salt")
    assert all(row.bin == row.task for row in frame.select("bin", F.spark_partition_id().alias("task")).collect())
