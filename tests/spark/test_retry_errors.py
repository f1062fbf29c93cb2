"""Failed rows run again and take their places in the same table."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from sparkinfer.core.errors import SinkError, SpecError
from sparkinfer.core.spec import JobSpec
from sparkinfer.driver.job import run_job
from sparkinfer.driver.model import Model
from sparkinfer.driver.predict import new_run_id, results, stamps
from sparkinfer.driver.read import read_source
from sparkinfer.driver.retry import Retry, find_failed, write_retried
from sparkinfer.driver.shard import shard
from sparkinfer.driver.sources.inputs import finish
from sparkinfer.driver.write import write
from tests.executor.chain import png_of
from tests.spark.models import fake_model_file

pytestmark = pytest.mark.spark

RED, GREEN, BLUE = png_of(200, 10, 20), png_of(20, 210, 10), png_of(10, 20, 220)


def job(folder, source, **sink):
    return JobSpec.model_validate(
        {
            "source": source,
            "model": {"path": str(fake_model_file(folder))},
            "preprocess": {"resize": None, "crop": [8, 8], "mean": [0], "std": [1], "rescale": 1},
            "postprocess": {"activation": "none", "check": False},
            "sink": sink if "table" in sink else {"path": str(folder / "out"), **sink},
            "errors": {"max_fraction": 1},
        }
    )


def table_of(spark, spec, source, run_id):
    """The prediction table of an input, by the driver's own steps."""
    model = Model(spec.model, spec.preprocess, spec.postprocess, spec.batch)
    sharding = shard(spark, source, spec.sharding, 2)
    plan = model.plan(spark, content=source.content_column, keys=source.content_keys)
    return finish(source, results(sharding.content, plan, spec.engine), stamps(model.inspected, run_id)), sharding


@dataclass
class Done:
    found: Retry
    run_id: str


def retried(spark, spec, codes=()):
    """What `--retry-errors` does."""
    found, run_id = find_failed(spark, spec, codes), new_run_id()
    assert found.source is not None
    table, sharding = table_of(spark, spec, found.source, run_id)
    with sharding.applied(spark):
        write_retried(spark, found, table, spec.sink, run_id)
    return Done(found, run_id)


def rows_of(spark, spec):
    table = spark.table(spec.sink.table) if spec.sink.table else spark.read.parquet(spec.sink.path)
    return table.collect()


def outcome(rows):
    """Name -> sorted labels or codes."""
    found: dict = {}
    for row in rows:
        name = None if row["path"] is None else Path(row["path"]).name
        found.setdefault(name, []).append(row["label"] or row["error_code"])
    return {name: sorted(values) for name, values in found.items()}


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for name, content in {
        "red 100%.png": RED,
        "grün.png": GREEN,
        "empty.png": b"",
        "notes.txt": b"no image",
        "gone.png": b"",
    }.items():
        (folder / name).write_bytes(content)
    return folder


def test_files(spark, tmp_path, photos):
    spec = job(tmp_path, {"images": str(photos), "keep": ["length"]})
    first = run_job(spec)
    (photos / "empty.png").write_bytes(BLUE)
    (photos / "gone.png").unlink()
    for name in ("red 100%.png", "grün.png"):
        (photos / name).unlink()  # good rows are not even looked at
    done = retried(spark, spec)
    rows = rows_of(spark, spec)
    assert outcome(rows) == {
        "red 100%.png": ["red"],
        "grün.png": ["green"],
        "empty.png": ["blue"],
        "notes.txt": ["UNSUPPORTED_FORMAT"],
        "gone.png": ["EMPTY"],
    }
    again = {Path(row["path"]).name for row in rows if row["run_id"] == done.run_id}
    assert again == {"empty.png", "notes.txt"}
    assert {row["run_id"] for row in rows} == {first.run_id, done.run_id}
    assert (done.found.rows, done.found.stay) == (2, 1)
    assert (done.found.counts.rows, done.found.counts.errors) == (3, {"EMPTY": 1})
    assert done.found.counts.samples["EMPTY"].endswith("gone.png")
    assert list(rows[0].asDict()) == spark.read.parquet(spec.sink.path).columns
    assert sorted(p.name for p in tmp_path.iterdir() if "out" in p.name) == ["out"]


def test_only_some_codes(spark, tmp_path, photos):
    spec = job(tmp_path, {"images": str(photos)})
    first = run_job(spec)
    done = retried(spark, spec, ["UNSUPPORTED_FORMAT"])
    by_run = {Path(row["path"]).name: row["run_id"] for row in rows_of(spark, spec)}
    assert [name for name, run_id in by_run.items() if run_id == done.run_id] == ["notes.txt"]
    assert by_run["empty.png"] == first.run_id
    assert len(by_run) == 5


def test_partitions(spark, tmp_path, photos):
    spec = job(tmp_path, {"images": str(photos)}, partition_by=["error_code"])
    run_job(spec)
    (photos / "empty.png").write_bytes(BLUE)
    retried(spark, spec)
    folders = {p.name for p in (tmp_path / "out").iterdir() if p.is_dir()}
    assert folders == {
        "error_code=__HIVE_DEFAULT_PARTITION__",
        "error_code=EMPTY",
        "error_code=UNSUPPORTED_FORMAT",
    }
    assert outcome(rows_of(spark, spec))["empty.png"] == ["blue"]
    assert len(rows_of(spark, spec)) == 5
    with pytest.raises(SinkError, match="partitioned by error_code, not by nothing"):
        find_failed(spark, job(tmp_path, {"images": str(photos)}))


def test_a_version_that_looks_like_a_number_stays(spark, tmp_path, photos):
    spec = job(tmp_path, {"images": str(photos)}, partition_by=["model_version"])
    spec = spec.model_copy(update={"model": spec.model.model_copy(update={"version": "03"})})
    run_job(spec)
    retried(spark, spec)
    assert [p.name for p in (tmp_path / "out").iterdir() if p.is_dir()] == ["model_version=03"]


def test_a_path_table_with_doubles(spark, tmp_path, photos):
    names = ["empty.png", "empty.png", "grün.png", "grün.png", "gone.png", "gone.png"]
    lines = [f"{photos / name},{n}" for n, name in enumerate(names)]
    (tmp_path / "list.csv").write_text("\n".join(["path,n", *lines, ",6"]) + "\n", "utf-8")
    spec = job(tmp_path, {"paths": str(tmp_path / "list.csv"), "keep": ["n"]})
    run_job(spec)
    (photos / "empty.png").write_bytes(BLUE)
    (photos / "gone.png").unlink()
    done = retried(spark, spec)
    rows = rows_of(spark, spec)
    assert outcome(rows) == {
        "empty.png": ["blue", "blue"],
        "grün.png": ["green", "green"],
        "gone.png": ["EMPTY", "EMPTY"],
        None: ["READ_FAILED"],
    }
    assert sorted(row["n"] for row in rows) == ["0", "1", "2", "3", "4", "5", "6"]
    assert (done.found.rows, done.found.stay) == (2, 3)


def parquet(spark, folder, rows):
    shutil.rmtree(folder / "in", ignore_errors=True)
    spark.createDataFrame(rows, "path string, n int, content binary").write.parquet(str(folder / "in"))
    spark.catalog.refreshByPath(str(folder / "in"))
    return {"parquet": str(folder / "in"), "keep": ["n"]}


def test_rows_with_their_bytes(spark, tmp_path):
    source = parquet(
        spark,
        tmp_path,
        [
            ("good", 1, RED),
            ("double", 2, b""),
            ("double", 3, GREEN),
            ("bad", 4, b"x"),
            ("gone", 5, b"x"),
            ("more", 6, b"x"),
            (None, 7, None),
        ],
    )
    spec = job(tmp_path, source)
    first = run_job(spec)
    parquet(
        spark,
        tmp_path,
        [
            ("good", 1, BLUE),
            ("double", 2, RED),
            ("double", 3, GREEN),
            ("bad", 4, BLUE),
            ("more", 6, RED),
            ("more", 8, RED),
            (None, 7, BLUE),
        ],
    )
    done = retried(spark, spec)
    rows = rows_of(spark, spec)
    assert outcome(rows) == {
        "good": ["red"],
        "double": ["green", "red"],
        "bad": ["blue"],
        "gone": ["UNSUPPORTED_FORMAT"],
        "more": ["UNSUPPORTED_FORMAT"],
        None: ["blue"],
    }
    assert {row["n"]: row["label"] for row in rows if row["path"] == "double"} == {2: "red", 3: "green"}
    assert {row["path"] for row in rows if row["run_id"] == first.run_id} == {"good", "gone", "more"}
    assert (done.found.rows, done.found.stay) == (4, 2)
    assert "4 failed rows run again; 2 stay" in done.found.describe()


def test_a_saved_table(spark, tmp_path, photos):
    spec = job(tmp_path, {"images": str(photos)}, table="retried_of_test")
    try:
        run_job(spec)
        (photos / "empty.png").write_bytes(BLUE)
        retried(spark, spec)
        rows = rows_of(spark, spec)
        assert (len(rows), outcome(rows)["empty.png"]) == (5, ["blue"])
    finally:
        spark.sql("DROP TABLE IF EXISTS retried_of_test")


@pytest.mark.parametrize("kind", ["files", "rows"])
def test_of_snapshots_only_those_with_failed_rows_are_replaced(spark, tmp_path, photos, kind):
    if kind == "rows":
        rows = [(p.name, n, p.read_bytes()) for n, p in enumerate(photos.iterdir())]
        source = parquet(spark, tmp_path, rows)
    else:
        source = {"images": str(photos)}
    spec = job(tmp_path, source)
    # As a resumable run writes them: a folder each.
    parts = ["path RLIKE 'red|gr.n'", "path RLIKE 'empty|gone'", "path RLIKE 'notes'"]
    for number, where in enumerate(parts):
        part = spec.model_copy(update={"source": spec.source.model_copy(update={"where": where})})
        table, sharding = table_of(spark, part, read_source(spark, part.source), f"run-{number}")
        with sharding.applied(spark):
            write(table, spec.sink.model_copy(update={"path": f"{spec.sink.path}/snapshot={number}"}), "first")
    out = tmp_path / "out"
    before = {p: p.stat().st_mtime_ns for p in out.glob("snapshot=[02]/*")}
    (photos / "empty.png").write_bytes(BLUE)
    if kind == "rows":
        parquet(spark, tmp_path, [(name, n, BLUE if name == "empty.png" else data) for name, n, data in rows])
    done = retried(spark, spec, ["EMPTY"])
    rows = rows_of(spark, spec)
    assert sorted((Path(row["path"]).name, row["snapshot"], row["label"] or row["error_code"]) for row in rows) == [
        ("empty.png", 1, "blue"),
        ("gone.png", 1, "EMPTY"),
        ("grün.png", 0, "green"),
        ("notes.txt", 2, "UNSUPPORTED_FORMAT"),
        ("red 100%.png", 0, "red"),
    ]
    assert done.found.snapshots == ("1",)
    assert {p: p.stat().st_mtime_ns for p in out.glob("snapshot=[02]/*")} == before
    assert (out / "snapshot=1" / "_SUCCESS").exists()
    assert sorted(p.name for p in out.iterdir()) == ["snapshot=0", "snapshot=1", "snapshot=2"]
    assert sorted(p.name for p in tmp_path.iterdir() if "out" in p.name) == ["out"]


def test_nothing_to_retry(spark, tmp_path, photos):
    for name in ("empty.png", "notes.txt", "gone.png"):
        (photos / name).unlink()
    spec = job(tmp_path, {"images": str(photos)})
    run_job(spec)
    found = find_failed(spark, spec)
    assert (found.source, found.rows, found.stay, found.counts.rows) == (None, 0, 0, 2)


def test_a_retry_that_fails_leaves_the_old_table(spark, tmp_path, photos, monkeypatch):
    spec = job(tmp_path, {"images": str(photos)})
    first = run_job(spec)
    (photos / "empty.png").write_bytes(BLUE)
    # The model that arrives is not the one that was inspected: every task with an image fails.
    monkeypatch.setattr("sparkinfer.driver.model._digest", lambda path: "0" * 64)
    with pytest.raises(Exception, match="0000"):
        retried(spark, spec)
    assert {row["run_id"] for row in rows_of(spark, spec)} == {first.run_id}
    assert sorted(p.name for p in tmp_path.iterdir() if "out" in p.name) == ["out"]


def test_what_cannot_be_retried_is_said(spark, tmp_path, photos):
    spec = job(tmp_path, {"images": str(photos)})
    with pytest.raises(SinkError, match="out' does not exist") as caught:
        find_failed(spark, spec)
    assert "earlier run" in str(caught.value.hint)
    with pytest.raises(SpecError, match="NO_SUCH_CODE"):
        find_failed(spark, spec, ["NO_SUCH_CODE"])
    with pytest.raises(SinkError, match="json cannot be retried"):
        find_failed(spark, job(tmp_path, {"images": str(photos)}, format="json"))
    spark.range(3).select(F.col("id").alias("path")).write.parquet(str(tmp_path / "out"))
    with pytest.raises(SinkError, match="no prediction table"):
        find_failed(spark, spec)
