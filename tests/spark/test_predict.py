"""The engines, the column function, the SQL function and streaming: the same predictions everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from chispa.dataframe_comparer import assert_df_equality
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import sparkinfer as si
from sparkinfer.core.errors import SourceError, SpecError
from sparkinfer.core.schema import PREDICTION_COLUMNS, RESULT_COLUMNS
from tests.executor.chain import png_of
from tests.images import bad_inputs
from tests.spark.models import fake_model, worker_calls

pytestmark = pytest.mark.spark

COLOURS = {"red": (200, 10, 20), "green": (20, 210, 10), "blue": (10, 20, 220)}


@pytest.fixture(scope="module")
def images(spark: SparkSession) -> DataFrame:
    """Thirty good rows among bad ones, in three partitions."""
    rows: list[tuple[str, bytes | None, int]] = []
    for i in range(30):
        name, colour = list(COLOURS.items())[i % 3]
        rows.append((f"{name}-{i}", png_of(*colour), i))
    rows += [(f"bad-{name}", content, -1) for name, (content, _) in bad_inputs().items()]
    schema = "path string, content binary, n int"
    return spark.createDataFrame(rows, schema).repartition(3, "path")


def ordered(table: DataFrame) -> DataFrame:
    return table.drop("run_id").orderBy("path")


@pytest.mark.parametrize("engine", ["pandas", "predict_batch_udf"])
@pytest.mark.parametrize("embedding", [None, "channel_means"])
def test_engines_agree(images: DataFrame, tmp_path: Path, engine: str, embedding: str | None) -> None:
    model = fake_model(tmp_path, embedding=embedding)
    expected = si.predict(images, model, keep=["n"])
    assert_df_equality(
        ordered(si.predict(images, model, keep=["n"], engine=engine)), ordered(expected), ignore_nullable=True
    )


def test_the_table_is_as_designed(images: DataFrame, tmp_path: Path) -> None:
    table = si.predict(images, fake_model(tmp_path, version="7"), keep=["n"])
    assert [(f.name, f.dataType.simpleString()) for f in table.schema] == [
        ("path", "string"),
        ("n", "int"),
        *((c.name, c.ddl) for c in PREDICTION_COLUMNS),
    ]
    rows = {row["path"]: row for row in table.collect()}
    assert len(rows) == images.count()
    assert {rows[p]["label"] for p in rows if p.startswith("red")} == {"red"}
    assert {row["model_version"] for row in rows.values()} == {"7"}
    assert {f"bad-{name}": code.value for name, (_, code) in bad_inputs().items()} == {
        p: row["error_code"] for p, row in rows.items() if p.startswith("bad-")
    }


def test_one_load_per_process_across_tasks_and_jobs(spark: SparkSession, images: DataFrame, tmp_path: Path) -> None:
    model = fake_model(tmp_path)
    for _ in range(3):
        si.predict(images, model).collect()
    workers = spark.sparkContext.defaultParallelism
    assert 1 <= len(worker_calls(tmp_path, "load")) <= workers


def test_a_limit_before_the_model_spares_it(images: DataFrame, tmp_path: Path) -> None:
    good = images.where("n >= 0").limit(4)
    assert si.predict(good, fake_model(tmp_path)).count() == 4
    assert sum(worker_calls(tmp_path, "infer")) <= 4


def test_column_function_and_sql_function(spark: SparkSession, images: DataFrame, tmp_path: Path) -> None:
    model = fake_model(tmp_path)
    names = [c.name for c in RESULT_COLUMNS]
    expected = si.predict(images, model).select("path", *names).orderBy("path")
    by_column = images.select("path", si.predict_udf(model)("content").alias("p")).select("path", "p.*")
    assert_df_equality(by_column.orderBy("path"), expected, ignore_nullable=True)
    si.register_sql(spark, "classify", model)
    images.createOrReplaceTempView("photos")
    by_sql = spark.sql("SELECT path, p.* FROM (SELECT path, classify(content) AS p FROM photos)").orderBy("path")
    assert_df_equality(by_sql, expected, ignore_nullable=True)
    assert spark.sql("SELECT classify(content).label AS l FROM photos WHERE n = 0 AND path LIKE 'red%'").first() == (
        "red",
    )


def test_each_image_is_predicted_once_by_every_engine(images: DataFrame, tmp_path: Path) -> None:
    good = images.where("n >= 0 and path not like 'bad%'")
    for engine in ("arrow", "pandas", "predict_batch_udf"):
        folder = tmp_path / engine
        folder.mkdir()
        si.predict(good, fake_model(folder), engine=engine).where("confidence > 0").collect()
        assert sum(worker_calls(folder, "infer")) == 30, engine


def test_a_stream_gives_the_same_table(spark: SparkSession, images: DataFrame, tmp_path: Path) -> None:
    model = fake_model(tmp_path)
    images.write.parquet(str(tmp_path / "in"))
    stream = spark.readStream.schema(images.schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    query = (
        si.predict(stream, model)
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert_df_equality(
        ordered(spark.read.parquet(str(tmp_path / "out"))), ordered(si.predict(images, model)), ignore_nullable=True
    )


def test_missing_columns_and_engines_are_named(images: DataFrame, tmp_path: Path) -> None:
    model = fake_model(tmp_path)
    with pytest.raises(SourceError, match="uri"):
        si.predict(images, model, path_column="uri")
    with pytest.raises(SpecError, match="ray"):
        si.predict(images, model, engine="ray")


def test_an_empty_dataframe_gives_an_empty_table(images: DataFrame, tmp_path: Path) -> None:
    empty: list[Any] = si.predict(images.where(F.lit(False)), fake_model(tmp_path)).collect()
    assert empty == []
    assert worker_calls(tmp_path, "load") == []


def test_a_large_model_travels_as_a_file(images: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkinfer.driver.model.BROADCAST_LIMIT", 0)
    model = fake_model(tmp_path)
    table = si.predict(images.where("path like 'red%'"), model)
    assert {row["label"] for row in table.collect()} == {"red"}
    assert len(worker_calls(tmp_path, "load")) >= 1


@pytest.mark.parametrize(
    ("keep", "text"), [("path", "it is there already"), (["label"], "prediction table"), ("length", "'length'")]
)
def test_columns_that_cannot_be_kept_are_named(images: DataFrame, tmp_path: Path, keep: Any, text: str) -> None:
    with pytest.raises(SourceError, match=text):
        si.predict(images.withColumn("label", F.lit("x")), fake_model(tmp_path), keep=keep)


def test_text_is_no_image(images: DataFrame, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="string, not binary"):
        si.predict(images, fake_model(tmp_path), content_column="path", path_column="n")
