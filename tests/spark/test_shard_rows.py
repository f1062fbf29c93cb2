"""Rows that carry their bytes: left, joined or moved, and what Spark then has in its tasks."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F

from sparkinfer.core.errors import EmptySourceError
from sparkinfer.core.spec import SourceSpec
from sparkinfer.driver.frames import settings
from sparkinfer.driver.read import read_source
from sparkinfer.driver.shard import shard
from sparkinfer.driver.splits import rows as shard_rows

pytestmark = pytest.mark.spark


def write(path, sizes):
    """One Parquet file with one row group, as long as its images and little more."""
    random = np.random.default_rng(0)
    table = pa.table({"path": [str(i) for i in range(len(sizes))], "content": [random.bytes(int(s)) for s in sizes]})
    pq.write_table(
        table, path, row_group_size=1 << 20, compression="none", use_dictionary=False, write_statistics=False
    )


def tasks_of(frame, source):
    """Rows and bytes of every task."""
    size = F.sum(F.octet_length(source.content_column)).alias("size")
    tasks = frame.groupBy(F.spark_partition_id()).agg(F.count("*").alias("rows"), size).collect()
    return np.array([task.rows for task in tasks]), np.array([task["size"] for task in tasks])


def sharded(spark, path, mode, cores, **options):
    source = read_source(spark, SourceSpec(parquet=str(path), **options))
    sharding = shard(spark, source, mode, cores)
    rows, sizes = tasks_of(sharding.content, source)
    assert sharding.conf == {}
    return sharding, rows, sizes


@pytest.fixture(scope="module")
def one_group(tmp_path_factory):
    """1,000 skewed rows that Spark can only read in one task."""
    path = tmp_path_factory.mktemp("rows") / "one.parquet"
    sizes = (100 * 10 ** np.random.default_rng(1).uniform(0, 3, 1000)).astype(np.int64)
    write(path, sizes)
    return path, sizes


@pytest.mark.parametrize("mode", ["auto", "bytes", "hybrid"])
def test_one_big_row_group_is_moved_into_balanced_tasks(spark, one_group, mode):
    path, sizes = one_group
    sharding, rows, found = sharded(spark, path, mode, 4)
    assert rows.sum() == 1000
    assert found.sum() == sizes.sum()
    assert len(found) == sharding.partitions == 12
    assert found.max() <= max(1.2 * found.mean(), sizes.max())
    assert "1,000 rows in 1 task" in sharding.reason
    assert "moved by" in sharding.reason
    assert sharding.heaviest_over_mean < 1.2


def test_by_count(spark, one_group):
    sharding, rows, _ = sharded(spark, one_group[0], "files", 4)
    assert sorted(set(rows)) == [83, 84]
    assert "moved by count" in sharding.reason


def test_large_inputs_are_counted_not_measured(spark, one_group, monkeypatch):
    monkeypatch.setattr(shard_rows, "MEASURED_BYTES", 0)
    sharding, rows, _ = sharded(spark, one_group[0], "auto", 4)
    assert "moved by count" in sharding.reason
    assert rows.max() - rows.min() <= 1
    monkeypatch.setattr(shard_rows, "MEASURED_ROWS", 10)
    assert "moved by count" in sharded(spark, one_group[0], "bytes", 4)[0].reason


@pytest.mark.parametrize("mode", ["auto", "files", "bytes", "hybrid"])
def test_rows_that_are_spread_well_are_left_where_they_are(spark, tmp_path, mode):
    for i in range(4):
        write(tmp_path / f"{i}.parquet", [10_000] * 20)
    with splits_of(spark, 210_000):
        sharding, rows, _ = sharded(spark, tmp_path, mode, 2)
    assert "left where they are" in sharding.reason
    assert sharding.partitions == len(rows) == 4


def splits_of(spark, size):
    conf = {"spark.sql.files.maxPartitionBytes": str(size), "spark.sql.files.openCostInBytes": "0"}
    return settings(spark, {**conf, "spark.sql.files.minPartitionNum": "1"})


def test_many_small_tasks_are_joined_without_moving_rows(spark, tmp_path):
    for i in range(40):
        write(tmp_path / f"{i}.parquet", [100])
    assert 350 < (tmp_path / "0.parquet").stat().st_size < 700  # one file a task
    with splits_of(spark, 700):
        sharding, rows, _ = sharded(spark, tmp_path, "auto", 2)
        plan = sharding.content._jdf.queryExecution().executedPlan().toString()
    assert "joined into 2 tasks" in sharding.reason
    assert "Exchange" not in plan
    assert sharding.partitions == len(rows) == 2
    assert rows.sum() == 40
    assert rows.max() <= 1.2 * rows.mean()


def test_one_heavy_row_does_not_make_the_others_move(spark, tmp_path):
    """A row cannot be cut, so its task is as long as it gets: nothing to gain."""
    write(tmp_path / "0.parquet", [3_000_000])
    write(tmp_path / "1.parquet", [100])
    with splits_of(spark, 3_000_900):
        sharding, rows, _ = sharded(spark, tmp_path, "auto", 2)
    assert "left where they are" in sharding.reason
    assert sorted(rows) == [1, 1]


def test_few_rows_and_none(spark, one_group):
    _, rows, _ = sharded(spark, one_group[0], "auto", 8, limit=3)
    assert rows.sum() == 3
    assert len(rows) == 3
    for mode in ("auto", "none"):
        with pytest.raises(EmptySourceError, match="has 0 rows"):
            sharded(spark, one_group[0], mode, 8, where="path = 'x'")
    untouched = sharded(spark, one_group[0], "none", 8)[0]
    assert untouched.partitions is None


def test_null_content_counts_as_nothing(spark, tmp_path):
    table = pa.table({"path": ["a", "b"], "content": pa.array([None, None], pa.binary())})
    pq.write_table(table, tmp_path / "t.parquet")
    sharding, rows, _ = sharded(spark, tmp_path, "bytes", 2)
    assert sorted(rows) == [1, 1]
    assert sharding.partitions == 2


def test_tasks_that_would_leave_a_core_idle_are_cut_elsewhere(spark, tmp_path):
    folder = tmp_path / "seven"
    folder.mkdir()
    for number in range(7):
        names = [f"{number}-{row}" for row in range(16)]
        content = [np.random.default_rng(row).bytes(20_000) for row in range(16)]
        table = pa.table({"path": names, "content": content})
        pq.write_table(table, folder / f"{number}.parquet", compression="none", row_group_size=1)
    one_file_each = (folder / "0.parquet").stat().st_size + 1_000
    with settings(
        spark,
        {"spark.sql.files.maxPartitionBytes": str(one_file_each), "spark.sql.files.openCostInBytes": "0"},
    ):
        source = read_source(spark, SourceSpec(parquet=str(folder)))
        sharding = shard(spark, source, "auto", 2)
        with sharding.applied(spark):
            rows, _ = tasks_of(sharding.content, source)
        assert spark.conf.get("spark.sql.files.maxPartitionBytes") == str(one_file_each)
    assert "that end together, none moved" in sharding.reason
    assert rows.sum() == 7 * 16
    assert sharding.partitions == len(rows) > 7
    assert shard_rows.busy(rows, 2) <= 1.05
