"""Prediction tables in Delta and Iceberg: written, resumed, streamed from, retried, merged, and read as they were."""

from __future__ import annotations

import pytest

from sparkinfer.core.errors import SinkError, SpecError
from sparkinfer.driver.job import run_job
from tests.executor.chain import png_of
from tests.spark.models import fake_model_file, worker_calls
from tests.spark.test_resume import job, run_killed
from tests.spark.test_retry_errors import job as plain_job
from tests.spark.test_retry_errors import outcome, parquet

pytestmark = pytest.mark.spark

RED, GREEN, BLUE = png_of(200, 10, 20), png_of(20, 210, 10), png_of(10, 20, 220)
FORMATS = ("delta", "iceberg")


@pytest.fixture(params=FORMATS)
def sink(spark, request):
    """`sink:` block of a table that is not there yet."""
    name = "default.predictions" if request.param == "delta" else "lake.db.predictions"
    yield {"table": name, "format": request.param}
    spark.sql(f"DROP TABLE IF EXISTS {name}")


@pytest.fixture
def source(spark, sink):
    """Name of an empty table of images in the same format."""
    name = sink["table"].replace("predictions", "photos")
    spark.sql(f"CREATE TABLE {name} (path STRING, content BINARY) USING {sink['format']}")
    yield name
    spark.sql(f"DROP TABLE {name}")


def add(spark, table, **images):
    rows = spark.createDataFrame(list(images.items()), "path string, content binary")
    rows.coalesce(1).writeTo(table).append()


def versions(spark, sink):
    """Versions of a table, oldest first, by the format's own books; and what made the last one."""
    if sink["format"] == "delta":
        rows = spark.sql(f"DESCRIBE HISTORY {sink['table']}").orderBy("version").collect()
        return [row["version"] for row in rows], rows[-1]["operation"]
    rows = spark.sql(f"SELECT * FROM {sink['table']}.snapshots ORDER BY committed_at").collect()
    return [row["snapshot_id"] for row in rows], rows[-1]["operation"]


MERGED = {"delta": "MERGE", "iceberg": "overwrite"}


def test_a_rerun_is_merged_and_the_earlier_run_can_still_be_read(spark, tmp_path, sink):
    photos = tmp_path / "photos"
    photos.mkdir()
    for name, content in {"a.png": RED, "b.png": GREEN, "gone.png": b""}.items():
        (photos / name).write_bytes(content)
    first = run_job(plain_job(tmp_path, {"images": str(photos)}, **sink))
    (photos / "a.png").write_bytes(BLUE)
    (photos / "gone.png").unlink()
    (photos / "new.png").write_bytes(RED)
    second = run_job(plain_job(tmp_path, {"images": str(photos)}, **sink, mode="merge"))
    rows = spark.table(sink["table"]).collect()
    assert outcome(rows) == {"a.png": ["blue"], "b.png": ["green"], "new.png": ["red"], "gone.png": ["EMPTY"]}
    runs = {row["path"].rsplit("/", 1)[1]: row["run_id"] for row in rows}
    assert runs == {**dict.fromkeys(["a.png", "b.png", "new.png"], second.run_id), "gone.png": first.run_id}
    (*_, earlier, _latest), operation = versions(spark, sink)
    assert operation == MERGED[sink["format"]]
    then = spark.sql(f"SELECT * FROM {sink['table']} VERSION AS OF {earlier}").collect()
    assert outcome(then) == {"a.png": ["red"], "b.png": ["green"], "gone.png": ["EMPTY"]}
    assert {row["run_id"] for row in then} == {first.run_id}


def test_merge_makes_the_table_that_is_not_there(spark, tmp_path, sink):
    spec = plain_job(tmp_path, parquet(spark, tmp_path, [("a", 1, RED)]), **sink, mode="merge")
    assert run_job(spec).rows == 1
    with pytest.raises(SinkError, match="has a column 'n'") as caught:
        run_job(spec.model_copy(update={"source": spec.source.model_copy(update={"keep": ()})}))
    assert caught.value.key == "sink.mode"
    assert outcome(spark.table(sink["table"]).collect()) == {"a": ["red"]}


def test_failed_files_are_replaced_in_one_transaction(spark, tmp_path, sink):
    photos = tmp_path / "photos"
    photos.mkdir()
    for name, content in {"empty.png": b"", "good.png": GREEN, "gone.png": b"", "notes.png": b"no image"}.items():
        (photos / name).write_bytes(content)
    names = ["empty.png", "empty.png", "good.png", "good.png", "gone.png", "notes.png"]
    lines = [f"{photos / name},{n}" for n, name in enumerate(names)]
    (tmp_path / "list.csv").write_text("\n".join(["path,n", *lines, ",6"]) + "\n")
    spec = plain_job(tmp_path, {"paths": str(tmp_path / "list.csv"), "keep": ["n"]}, **sink)
    run_job(spec)
    before, _ = versions(spark, sink)
    (photos / "empty.png").write_bytes(BLUE)
    (photos / "notes.png").write_bytes(BLUE)
    (photos / "good.png").write_bytes(RED)
    (photos / "gone.png").unlink()
    done = run_job(spec, retry_codes=["EMPTY"])
    rows = spark.table(sink["table"]).collect()
    assert outcome(rows) == {
        "empty.png": ["blue", "blue"],
        "good.png": ["green", "green"],
        "gone.png": ["EMPTY"],
        "notes.png": ["UNSUPPORTED_FORMAT"],
        None: ["READ_FAILED"],
    }
    assert sorted(row["n"] for row in rows) == ["0", "1", "2", "3", "4", "5", "6"]
    assert {row["n"] for row in rows if row["run_id"] == done.run_id} == {"0", "1"}
    assert (done.retried, done.rows) == (2, 7)
    after, operation = versions(spark, sink)
    assert (after[:-1], operation) == (before, MERGED[sink["format"]])


def test_failed_rows_that_carry_their_bytes_are_replaced(spark, tmp_path, sink):
    first = [("good", 1, RED), ("double", 2, b""), ("double", 3, GREEN), ("gone", 4, b"x"), (None, 5, None)]
    spec = plain_job(tmp_path, parquet(spark, tmp_path, first), **sink)
    run_job(spec)
    parquet(spark, tmp_path, [("good", 1, BLUE), ("double", 2, RED), ("double", 3, GREEN), (None, 5, BLUE)])
    done = run_job(spec, retry_codes=())
    rows = spark.table(sink["table"]).collect()
    assert outcome(rows) == {
        "good": ["red"],
        "double": ["green", "red"],
        "gone": ["UNSUPPORTED_FORMAT"],
        None: ["blue"],
    }
    assert {row["n"] for row in rows if row["run_id"] == done.run_id} == {2, 3, 5}
    assert done.retried == 3


def test_a_run_killed_before_it_marked_what_it_wrote_goes_on(spark, tmp_path, sink, monkeypatch):
    photos = tmp_path / "photos"
    photos.mkdir()
    for number in range(5):
        (photos / f"{number}.png").write_bytes([RED, GREEN, BLUE][number % 3])
    spec = job(tmp_path, {"images": str(photos)}, every="2 files", sink={"path": None, **sink})
    run_killed(monkeypatch, spec, "after", 1)
    run_job(spec)
    expected = {f"{number}.png": [["red", "green", "blue"][number % 3]] for number in range(5)}
    assert outcome(spark.table(sink["table"]).collect()) == expected
    assert len(versions(spark, sink)[0]) == 3  # a transaction for each snapshot, and none that is empty
    (photos / "new.png").write_bytes(RED)
    assert run_job(spec).rows == 1
    assert outcome(spark.table(sink["table"]).collect()) == {**expected, "new.png": ["red"]}


def test_a_table_is_streamed_into_a_table(spark, tmp_path, sink, source, monkeypatch):
    add(spark, source, a=RED, b=GREEN)
    add(spark, source, c=b"")
    spec = job(tmp_path, {"table": source}, every="1 file", sink={"path": None, **sink})
    # Iceberg 1.10 hands over all there is at once, whatever a snapshot is to hold.
    run_killed(monkeypatch, spec, "after", 1 if sink["format"] == "delta" else 0)
    run_job(spec)
    assert outcome(spark.table(sink["table"]).collect()) == {"a": ["red"], "b": ["green"], "c": ["EMPTY"]}
    read = sum(worker_calls(tmp_path, "infer"))
    add(spark, source, d=BLUE)
    result = run_job(spec)
    assert (result.rows, result.snapshots) == (1, 1)
    assert sum(worker_calls(tmp_path, "infer")) - read == 1
    # The stream wrote it in a session of its own, and this one's catalogue keeps what it knew for half a minute.
    spark.catalog.refreshTable(sink["table"])
    rows = spark.table(sink["table"]).collect()
    assert outcome(rows) == {"a": ["red"], "b": ["green"], "c": ["EMPTY"], "d": ["blue"]}


def test_a_delta_folder_with_an_odd_name(spark, tmp_path):
    folder = tmp_path / "out 100% `x`"
    spec = plain_job(
        tmp_path, parquet(spark, tmp_path, [("a", 1, b""), ("b", 2, RED)]), format="delta", path=str(folder)
    )
    run_job(spec)
    parquet(spark, tmp_path, [("a", 1, GREEN), ("b", 2, RED)])
    assert run_job(spec, retry_codes=()).retried == 1
    rows = spark.read.format("delta").load(str(folder)).collect()
    assert outcome(rows) == {"a": ["green"], "b": ["red"]}


def test_what_cannot_be_merged_is_said(spark, tmp_path):
    fake_model_file(tmp_path)
    rows = parquet(spark, tmp_path, [("a", 1, RED)])
    with pytest.raises(SpecError, match="merges none"):
        run_job(job(tmp_path, rows, sink={"path": None, "table": "lake.db.t", "format": "iceberg", "mode": "merge"}))
    spark.sql("CREATE TABLE lake.db.other (path STRING) USING iceberg")
    folder = spark.conf.get("spark.sql.catalog.lake.warehouse") + "/db/other"
    with pytest.raises(SinkError, match="where it has a name"):
        run_job(plain_job(tmp_path, rows, path=folder, format="iceberg", mode="merge"))
