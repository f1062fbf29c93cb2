"""Whole jobs, from spec to sink, on the fake model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkinfer.core.errors import BudgetExceededError, ModelError, SinkError, SourceError, SpecError
from sparkinfer.core.spec import JobSpec
from sparkinfer.driver.job import JobResult, run_job
from tests.executor.chain import png_of
from tests.images import bad_inputs
from tests.spark.models import fake_model_file, worker_calls

pytestmark = pytest.mark.spark

RAW = {"resize": None, "crop": [8, 8], "mean": [0], "std": [1], "rescale": 1}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three good images, an empty file, a text file and a hidden one."""
    folder = tmp_path / "photos"
    (folder / "label=cat").mkdir(parents=True)
    (folder / "red 100%.png").write_bytes(png_of(200, 10, 20))
    (folder / "grün.png").write_bytes(png_of(20, 210, 10))
    (folder / "label=cat" / "blue.png").write_bytes(png_of(10, 20, 220))
    (folder / "empty.png").write_bytes(b"")
    (folder / "notes.txt").write_text("no image")
    (folder / ".hidden.png").write_bytes(b"x")
    return folder


def job(tmp_path: Path, source: dict[str, Any], **blocks: Any) -> JobSpec:
    sink = blocks.pop("sink", {"path": str(tmp_path / "out")})
    model = {"path": str(fake_model_file(tmp_path)), **blocks.pop("model", {})}
    errors = blocks.pop("errors", {"max_fraction": 1})
    return JobSpec.model_validate(
        {
            "source": source,
            "model": model,
            "preprocess": RAW,
            "postprocess": {"activation": "none", "check": False},
            "sink": sink,
            "errors": errors,
            **blocks,
        }
    )


def run(spark: SparkSession, tmp_path: Path, source: dict[str, Any], **blocks: Any) -> tuple[JobResult, dict[str, Any]]:
    result = run_job(job(tmp_path, source, **blocks))
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    return result, {Path(row["path"]).name: row for row in rows}


@pytest.mark.parametrize("engine", ["arrow", "pandas", "predict_batch_udf"])
def test_a_folder(spark: SparkSession, tmp_path: Path, photos: Path, engine: str) -> None:
    report = tmp_path / "report"
    result, rows = run(spark, tmp_path, {"images": str(photos)}, engine=engine, report=str(report))
    assert {name: row["label"] or row["error_code"] for name, row in rows.items()} == {
        "red 100%.png": "red",
        "grün.png": "green",
        "blue.png": "blue",
        "empty.png": "EMPTY",
        "notes.txt": "UNSUPPORTED_FORMAT",
    }
    assert (result.rows, result.errors) == (5, {"EMPTY": 1, "UNSUPPORTED_FORMAT": 1})
    assert result.left_out == {"hidden": 1}
    assert {row["run_id"] for row in rows.values()} == {result.run_id}
    written = json.loads((report / "report.json").read_text())
    assert (written["rows"], written["errors"]) == (5, result.errors)
    assert written["samples"]["EMPTY"].endswith("empty.png")


def test_every_bad_input_through_parquet(spark: SparkSession, tmp_path: Path) -> None:
    bad = bad_inputs()
    rows = [(name, content) for name, (content, _) in bad.items()] + [("good", png_of(200, 10, 20))]
    spark.createDataFrame(rows, "name string, image binary").write.parquet(str(tmp_path / "in"))
    source = {"parquet": str(tmp_path / "in"), "path_column": "name", "content_column": "image"}
    result = run_job(job(tmp_path, source))
    table = {row["name"]: row for row in spark.read.parquet(str(tmp_path / "out")).collect()}
    assert {name: code.value for name, (_, code) in bad.items()} == {
        name: row["error_code"] for name, row in table.items() if name != "good"
    }
    assert table["good"]["label"] == "red"
    assert result.rows == len(bad) + 1


def test_limit_acts_before_the_model(tmp_path: Path, photos: Path, spark: SparkSession) -> None:
    result, _ = run(spark, tmp_path, {"images": str(photos), "where": "length > 10", "limit": 1})
    assert result.rows == 1
    assert sum(worker_calls(tmp_path, "infer")) <= 1


def test_too_many_errors_end_with_the_budget_and_keep_the_output(
    spark: SparkSession, tmp_path: Path, photos: Path
) -> None:
    with pytest.raises(BudgetExceededError) as caught:
        run_job(job(tmp_path, {"images": str(photos)}, errors={"max_fraction": 0.1}))
    text = caught.value.render()
    assert "2 of 5 rows failed" in text
    assert "1 x EMPTY, for example" in text
    assert spark.read.parquet(str(tmp_path / "out")).count() == 5


def test_an_existing_output_is_refused_before_anything_runs(tmp_path: Path, photos: Path, spark: SparkSession) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(SinkError) as caught:
        run_job(job(tmp_path, {"images": str(photos)}))
    assert caught.value.allowed == ("overwrite", "append")
    assert worker_calls(tmp_path, "infer") == []


def test_overwrite_and_append(spark: SparkSession, tmp_path: Path, photos: Path) -> None:
    source = {"images": str(photos)}
    first, _ = run(spark, tmp_path, source)
    out = str(tmp_path / "out")
    second, _ = run(spark, tmp_path, source, sink={"path": out, "mode": "append"})
    ids = {r["run_id"] for r in spark.read.parquet(out).select("run_id").distinct().collect()}
    assert ids == {first.run_id, second.run_id}
    third, rows = run(spark, tmp_path, source, sink={"path": out, "mode": "overwrite"})
    assert {row["run_id"] for row in rows.values()} == {third.run_id}
    assert sorted(p.name for p in tmp_path.iterdir() if "out" in p.name) == ["out"]


def test_a_failing_job_leaves_the_old_table_and_nothing_else(
    spark: SparkSession, tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"images": str(photos)}
    first, _ = run(spark, tmp_path, source)
    spec = job(tmp_path, source, sink={"path": str(tmp_path / "out"), "mode": "overwrite"})
    # The model that arrives is not the one that was inspected: every task fails.
    monkeypatch.setattr("sparkinfer.driver.model._digest", lambda path: "0" * 64)
    with pytest.raises(Exception, match="0000"):
        run_job(spec)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert {row["run_id"] for row in rows} == {first.run_id}
    assert sorted(p.name for p in tmp_path.iterdir() if "out" in p.name) == ["out"]


def test_partition_columns_and_other_formats(spark: SparkSession, tmp_path: Path, photos: Path) -> None:
    sink = {"path": str(tmp_path / "out"), "format": "json", "partition_by": ["label"]}
    run_job(job(tmp_path, {"images": str(photos)}, sink=sink))
    assert {p.name for p in (tmp_path / "out").iterdir() if p.is_dir()} >= {"label=red", "label=blue"}
    assert spark.read.json(str(tmp_path / "out")).count() == 5


def test_a_saved_table_and_its_replacement(spark: SparkSession, tmp_path: Path, photos: Path) -> None:
    try:
        for mode in ("error", "overwrite", "append"):
            sink = {"table": "predictions_of_test", "mode": mode}
            result = run_job(job(tmp_path, {"images": str(photos)}, sink=sink))
        table = spark.table("predictions_of_test")
        assert table.count() == 10
        assert table.where(f"run_id = '{result.run_id}'").count() == 5
        with pytest.raises(SinkError, match="already there"):
            run_job(job(tmp_path, {"images": str(photos)}, sink={"table": "predictions_of_test"}))
    finally:
        spark.sql("DROP TABLE IF EXISTS predictions_of_test")


def test_tables_and_queries_as_sources(spark: SparkSession, tmp_path: Path) -> None:
    rows = [("a", png_of(200, 10, 20), 1), ("b", png_of(10, 20, 220), 2)]
    spark.createDataFrame(rows, "path string, content binary, n int").createOrReplaceTempView("photos_of_test")
    _, by_table = run(spark, tmp_path, {"table": "photos_of_test", "keep": ["n"]})
    assert {name: (row["n"], row["label"]) for name, row in by_table.items()} == {"a": (1, "red"), "b": (2, "blue")}
    query = {"query": "SELECT * FROM photos_of_test WHERE n = 2"}
    _, by_query = run(spark, tmp_path, query, sink={"path": str(tmp_path / "out"), "mode": "overwrite"})
    assert list(by_query) == ["b"]


@pytest.mark.parametrize(
    ("blocks", "error", "text"),
    [
        ({"sink": {"path": "OUT", "format": "parkett"}}, SinkError, "parkett"),
        ({"sink": {"path": "OUT", "partition_by": ["colour"]}}, SinkError, "colour"),
        ({"model": {"path": "missing.onnx"}}, ModelError, "does not exist"),
        ({"model": {"labels": "LABELS"}}, ModelError, "2 labels, the model has 3 classes"),
        ({"source": {"images": "EMPTY"}}, SourceError, ""),
        ({"source": {"images": "nowhere"}}, SourceError, "nowhere"),
        ({"source": {"parquet": "PARQUET"}}, SourceError, "0 rows"),
        ({"source": {"parquet": "LABELS"}}, SourceError, "no Parquet file"),
        ({"source": {"query": "DROP TABLE keep_me"}}, SourceError, "source.query"),
        ({"model": {"labels": "BINARY"}}, ModelError, "not UTF-8"),
        ({"sink": {"path": "OUT", "format": "csv"}}, SinkError, "array"),
        ({"sink": {"path": "OUT", "options": {"compression": "nosuch"}}}, SinkError, "nosuch"),
        ({"sink": {"table": "two words"}}, SinkError, "sink.table"),
        ({"report": "LABELS"}, SpecError, "is a file"),
    ],
)
def test_what_a_person_can_mend_is_said_in_one_screen(
    spark: SparkSession, tmp_path: Path, photos: Path, blocks: dict[str, Any], error: type[Exception], text: str
) -> None:
    (tmp_path / "LABELS").write_text("a\nb\n")
    (tmp_path / "BINARY").write_bytes(bytes(range(256)))
    (tmp_path / "EMPTY").mkdir()
    spark.createDataFrame([], "path string, content binary").write.parquet(str(tmp_path / "PARQUET"))
    named = {name: str(tmp_path / name) for name in ("OUT", "LABELS", "EMPTY", "PARQUET", "BINARY")}
    filled = {
        b: {k: named.get(str(v), v) for k, v in v_.items()} if isinstance(v_, dict) else named[v_]
        for b, v_ in blocks.items()
    }
    source = filled.pop("source", {"images": str(photos)})
    with pytest.raises(error) as caught:
        run_job(job(tmp_path, source, **filled))
    rendered = caught.value.render()  # type: ignore[attr-defined]
    assert text in rendered
    assert len(rendered.splitlines()) < 12
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("output", ["photos", ".", "photos/predictions"])
@pytest.mark.parametrize("mode", ["overwrite", "append"])
def test_an_output_never_touches_the_input(
    spark: SparkSession, tmp_path: Path, photos: Path, output: str, mode: str
) -> None:
    before = sorted(photos.rglob("*"))
    sink = {"path": str(tmp_path / output), "mode": mode}
    for source in (str(photos), str(photos / "*.png")):
        with pytest.raises(SinkError, match=r"holds|lies in| is "):
            run_job(job(tmp_path, {"images": source}, sink=sink))
    assert sorted(photos.rglob("*")) == before


def test_foreign_files_are_not_overwritten(spark: SparkSession, tmp_path: Path, photos: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.doc").write_text("years of work")
    with pytest.raises(SinkError, match=r"thesis\.doc"):
        run_job(job(tmp_path, {"images": str(photos)}, sink={"path": str(tmp_path / "out"), "mode": "overwrite"}))
    assert (tmp_path / "out" / "thesis.doc").exists()


def test_append_keeps_the_folders_own_partitions(spark: SparkSession, tmp_path: Path, photos: Path) -> None:
    out = str(tmp_path / "out")
    run_job(job(tmp_path, {"images": str(photos)}, sink={"path": out, "partition_by": ["label"]}))
    with pytest.raises(SinkError, match="partitioned by label, not by nothing"):
        run_job(job(tmp_path, {"images": str(photos)}, sink={"path": out, "mode": "append"}))
    run_job(job(tmp_path, {"images": str(photos)}, sink={"path": out, "mode": "append", "partition_by": ["label"]}))
    assert spark.read.parquet(out).count() == 10


def test_a_query_may_be_any_query(spark: SparkSession, tmp_path: Path) -> None:
    rows = [("a", png_of(200, 10, 20)), ("b", png_of(10, 20, 220))]
    spark.createDataFrame(rows, "path string, content binary").createOrReplaceTempView("photos_of_query")
    query = "WITH p AS (SELECT * FROM photos_of_query) SELECT * FROM p ORDER BY path DESC LIMIT 1; -- the last"
    _, table = run(spark, tmp_path, {"query": query.replace("; -- the last", " -- the last")})
    assert list(table) == ["b"]
