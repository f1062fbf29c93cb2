"""Odd and hostile names of tables and columns, against Spark's own parser and catalogue."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkinfer.core.errors import SinkError, SourceError, UserError
from sparkinfer.driver.job import run_job
from sparkinfer.driver.names import table_name, table_parts
from tests.executor.chain import png_of
from tests.spark.models import worker_calls
from tests.spark.test_job import job

pytestmark = pytest.mark.spark


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "red.png").write_bytes(png_of(200, 10, 20))
    return folder


@pytest.mark.parametrize(
    "name", ["t", "db.t", "a.b.c", "`a.b`.`c``d`", "`my-table`", "`t; DROP TABLE u`", "`таблица`.` x `", "`-- x`"]
)
def test_spark_reads_names_as_we_do(spark, name):
    parse = spark._jsparkSession.sessionState().sqlParser().parseMultipartIdentifier
    assert tuple(parse(name).mkString("\0").split("\0")) == table_parts(name)
    assert tuple(parse(table_name(name, "k")).mkString("\0").split("\0")) == table_parts(name)


@pytest.fixture
def victim(spark):
    spark.sql("DROP TABLE IF EXISTS victim")
    spark.range(3).write.saveAsTable("victim")
    yield
    spark.sql("DROP TABLE IF EXISTS victim")


HOSTILE = [
    "victim --",
    "victim /* x */",
    "victim; DROP TABLE victim",
    "`victim` --",
    "x` (a int); DROP TABLE victim --",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_table_name_touches_no_other_table(spark, tmp_path, photos, victim, name):
    """Unquoted, the table of the first two would have been dropped: what we append to the name was a comment."""
    with pytest.raises(UserError):
        run_job(job(tmp_path, {"images": str(photos)}, sink={"table": name, "mode": "overwrite"}))
    assert spark.table("victim").count() == 3


def test_a_table_in_backticks_is_written_and_overwritten(spark, tmp_path, photos):
    spec = job(tmp_path, {"images": str(photos)}, sink={"table": "`default`.`odd_one`", "mode": "overwrite"})
    try:
        run_job(spec)
        run_job(spec)
        assert spark.table("odd_one").count() == 1
        assert [t.name for t in spark.catalog.listTables() if t.name.startswith("odd_one")] == ["odd_one"]
    finally:
        spark.sql("DROP TABLE IF EXISTS odd_one")


def test_a_name_that_the_catalogue_does_not_take_is_refused_before_the_model_runs(spark, tmp_path, photos):
    with pytest.raises(SinkError) as caught:
        run_job(job(tmp_path, {"images": str(photos)}, sink={"table": "default.my-table"}))
    assert caught.value.key == "sink.table"
    assert worker_calls(tmp_path, "infer") == []


ODD = ["a.b", "back`tick", "two words", "фото", "a;b", "x' OR '1'='1"]


@pytest.mark.parametrize("name", ODD)
def test_odd_columns_are_keys_and_partitions(spark, tmp_path, name):
    source = tmp_path / "in"
    rows = spark.createDataFrame([("p0", "v1", bytearray(png_of(9, 8, 7)))], ["path", "k", "content"])
    rows.withColumnRenamed("k", name).write.parquet(str(source))
    sink = {"path": str(tmp_path / "out"), "partition_by": [name]}
    result = run_job(job(tmp_path, {"parquet": str(source), "keep": [name]}, sink=sink))
    assert result.rows == 1
    (row,) = spark.read.parquet(str(tmp_path / "out")).collect()
    assert row[name] == "v1"


def test_a_query_is_one_query(spark, tmp_path, victim):
    with pytest.raises(SourceError):
        run_job(job(tmp_path, {"query": "SELECT 1) UNION (SELECT 2); DROP TABLE victim; --"}))
    with pytest.raises(SourceError):
        run_job(job(tmp_path, {"query": "DROP TABLE victim"}))
    assert spark.table("victim").count() == 3
