"""Runs in snapshots: what is finished stays, what is not is done, and nothing twice."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkinfer.core.errors import BudgetExceededError, SinkError, SpecError
from sparkinfer.core.spec import JobSpec
from sparkinfer.driver import budget, resume
from sparkinfer.driver.execution import predict_into
from sparkinfer.driver.job import run_job
from tests.executor.chain import png_of
from tests.spark.models import fake_model_file, worker_calls

pytestmark = pytest.mark.spark

RAW = {"resize": None, "crop": [8, 8], "mean": [0], "std": [1], "rescale": 1}
COLOURS = [(200, 10, 20), (20, 210, 10), (10, 20, 220)]


class KilledError(Exception):
    """The driver's death at a place that a test chooses."""


def photo(folder: Path, number: int) -> Path:
    path = folder / f"photo {number:03d}.png"
    path.write_bytes(png_of(*COLOURS[number % 3]))
    return path


def ten_photos(tmp_path: Path) -> Path:
    """Ten images of three colours."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(10):
        photo(folder, number)
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Ten images of three colours."""
    return ten_photos(tmp_path)


def job(tmp_path: Path, source: dict[str, Any], every: str = "4 files", **blocks: Any) -> JobSpec:
    return JobSpec.model_validate(
        {
            "source": source,
            "model": {"path": str(fake_model_file(tmp_path)), **blocks.pop("model", {})},
            "preprocess": RAW,
            "postprocess": {"activation": "none", "check": False},
            "sink": {"path": str(tmp_path / "out"), **blocks.pop("sink", {})},
            "errors": {"max_fraction": 1, **blocks.pop("errors", {})},
            "resume": {"checkpoint": str(tmp_path / "check"), "snapshot_every": every},
            **blocks,
        }
    )


def table(spark: SparkSession, tmp_path: Path) -> dict[str, tuple[str, int]]:
    """Label or error and snapshot of every file; each file once."""
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    names = Counter(Path(row["path"]).name for row in rows)
    assert not {name for name, count in names.items() if count > 1}
    return {Path(row["path"]).name: (row["label"] or row["error_code"], row["snapshot"]) for row in rows}


def kill_at(monkeypatch: pytest.MonkeyPatch, place: str, number: int) -> None:
    """The driver dies in snapshot `number`: before its output is there, or after it, before it is marked."""
    real = predict_into
    seen: list[int] = []

    def dying(*args: Any, **kwargs: Any) -> Any:
        seen.append(0)
        if len(seen) - 1 == number:
            if place == "after":
                real(*args, **kwargs)
            raise KilledError
        return real(*args, **kwargs)

    monkeypatch.setattr(resume, "predict_into", dying)


def run_killed(monkeypatch: pytest.MonkeyPatch, spec: JobSpec, place: str, number: int) -> None:
    with monkeypatch.context() as patch:
        kill_at(patch, place, number)
        with pytest.raises(KilledError):
            run_job(spec)


def test_snapshots_make_one_table(spark: SparkSession, tmp_path: Path, photos: Path) -> None:
    result = run_job(job(tmp_path, {"images": str(photos)}))
    rows = table(spark, tmp_path)
    assert (result.rows, result.snapshots, result.finished_before) == (10, 3, 0)
    expected = ["red", "green", "blue"]
    assert rows == {f"photo {n:03d}.png": (expected[n % 3], n // 4) for n in range(10)}


@pytest.mark.parametrize("place", ["before", "after"])
def test_after_a_crash_the_same_command_goes_on(
    spark: SparkSession, tmp_path: Path, photos: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = job(tmp_path, {"images": str(photos)})
    run_killed(monkeypatch, spec, place, 1)
    read_before = sum(worker_calls(tmp_path, "infer"))
    result = run_job(spec)
    assert table(spark, tmp_path).keys() == {f"photo {n:03d}.png" for n in range(10)}
    assert result.rows == 6
    # What was written is adopted, not predicted again.
    assert sum(worker_calls(tmp_path, "infer")) - read_before == (6 if place == "before" else 2)
    assert not [path.name for path in (tmp_path / "out").iterdir() if path.name.startswith(".snapshot")]


def test_a_finished_job_reads_nothing_and_picks_up_new_files(spark: SparkSession, tmp_path: Path, photos: Path) -> None:
    spec = job(tmp_path, {"images": str(photos)})
    run_job(spec)
    done = sum(worker_calls(tmp_path, "infer"))
    again = run_job(spec)
    assert (again.rows, again.snapshots, again.finished_before) == (0, 0, 10)
    photo(photos, 10)
    more = run_job(spec)
    assert (more.rows, more.finished_before) == (1, 10)
    assert sum(worker_calls(tmp_path, "infer")) - done == 1
    assert table(spark, tmp_path)["photo 010.png"] == ("green", 3)


def test_changed_files_are_told_and_left(spark: SparkSession, tmp_path: Path, photos: Path) -> None:
    spec = job(tmp_path, {"images": str(photos)})
    run_job(spec)
    (photos / "photo 000.png").write_bytes(png_of(10, 20, 220) + b"longer")
    result = run_job(spec)
    assert (result.changed, result.rows) == (1, 0)
    assert table(spark, tmp_path)["photo 000.png"] == ("red", 0)


def test_a_file_that_goes_between_two_runs_is_a_row(
    spark: SparkSession, tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = job(tmp_path, {"images": str(photos)})
    run_killed(monkeypatch, spec, "before", 1)
    (photos / "photo 005.png").unlink()
    run_job(spec)
    rows = table(spark, tmp_path)
    assert rows["photo 005.png"] == ("READ_FAILED", 1)
    assert len(rows) == 10


def test_parquet_files_are_read_once(
    spark: SparkSession, tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(path.name, path.read_bytes(), int(path.stem[-1]) % 2) for path in sorted(photos.iterdir())]
    folder = tmp_path / "in put%20"
    frame = spark.createDataFrame(rows, "path string, content binary, half int").repartition(5)
    frame.write.partitionBy("half").parquet(str(folder))
    files = len(list(folder.rglob("*.parquet")))
    spec = job(tmp_path, {"parquet": str(folder), "keep": ["half"]}, every="2 files")
    run_killed(monkeypatch, spec, "before", 1)
    read_before = sum(worker_calls(tmp_path, "infer"))
    result = run_job(spec)
    assert result.snapshots == -(-files // 2) - 1
    assert read_before + sum(worker_calls(tmp_path, "infer")) - read_before == 10
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted((row["path"], row["half"]) for row in found) == sorted((name, half) for name, _, half in rows)
    spark.createDataFrame([("new", png_of(200, 10, 20), 0)], frame.schema).write.mode("append").partitionBy(
        "half"
    ).parquet(str(folder))
    assert run_job(spec).rows == 1


def test_batches_count_rows(spark: SparkSession, tmp_path: Path, photos: Path) -> None:
    rows = [(path.name, path.read_bytes()) for path in sorted(photos.iterdir())]
    for part in range(5):
        part_rows = spark.createDataFrame(rows[part * 2 : part * 2 + 2], "path string, content binary").coalesce(1)
        part_rows.write.mode("append").parquet(str(tmp_path / "in"))
    spec = job(tmp_path, {"parquet": str(tmp_path / "in")}, every="2 batches", batch={"size": 2})
    assert run_job(spec).snapshots == 3  # files of 2 rows, 4 rows each: 2, 2 and 1 files
    assert spark.read.parquet(str(tmp_path / "out")).count() == 10


def test_a_path_table_with_doubles_and_nulls(
    spark: SparkSession, tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [str(path) for path in sorted(photos.iterdir())]
    rows = [(name, number) for number, name in enumerate([*names, names[0], names[7], str(photos / "none.png")])]
    listed = [*rows, (None, 77), (None, 78)]
    spark.createDataFrame(listed, "path string, id int").coalesce(1).write.parquet(str(tmp_path / "list.parquet"))
    spec = job(tmp_path, {"paths": str(tmp_path / "list.parquet"), "keep": ["id"]})
    run_killed(monkeypatch, spec, "before", 1)
    run_job(spec)
    found = spark.read.parquet(str(tmp_path / "out")).collect()
    assert Counter((row["path"], row["id"]) for row in found) == Counter(listed)
    failed = {row["id"]: row["error_code"] for row in found if row["error_code"]}
    assert failed == {12: "READ_FAILED", 77: "READ_FAILED", 78: "READ_FAILED"}
    assert run_job(spec).rows == 0


def test_a_catalogue_table_of_files(spark: SparkSession, tmp_path: Path, photos: Path) -> None:
    rows = [(path.name, path.read_bytes()) for path in sorted(photos.iterdir())]
    frame = spark.createDataFrame(rows, "path string, content binary").repartition(5)
    frame.write.saveAsTable("resumed_photos")
    try:
        spec = job(tmp_path, {"table": "resumed_photos"}, every="2 files")
        assert run_job(spec).rows == 10
        frame.limit(3).write.mode("append").saveAsTable("resumed_photos")
        assert run_job(spec).rows == 3
    finally:
        spark.sql("DROP TABLE resumed_photos")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"postprocess": {"activation": "none", "check": False, "top_k": 1}}, "postprocess.top_k: 5 then, 1 now"),
        ({"preprocess": {**RAW, "mean": [1]}}, "preprocess.mean: "),
        ({"model": {"version": "2"}}, 'model.version: null then, "2" now'),
    ],
)
def test_another_job_is_refused(
    spark: SparkSession, tmp_path: Path, photos: Path, change: dict[str, Any], said: str
) -> None:
    run_job(job(tmp_path, {"images": str(photos)}))
    with pytest.raises(SpecError) as caught:
        run_job(JobSpec.model_validate({**job(tmp_path, {"images": str(photos)}, **change).model_dump()}))
    assert caught.value.key == "resume.checkpoint"
    assert said in caught.value.message


def test_another_model_is_refused_and_a_moved_one_is_not(spark: SparkSession, tmp_path: Path, photos: Path) -> None:
    spec = job(tmp_path, {"images": str(photos)})
    run_job(spec)
    moved = tmp_path / "elsewhere.fake"
    shutil.copy(tmp_path / "colours.fake", moved)
    same = {"path": str(moved), "name": "colours"}
    assert run_job(job(tmp_path, {"images": str(photos)}, model=same, batch={"size": 3}, sharding="none")).rows == 0
    moved.write_text(json.dumps({"num_classes": 3}))
    with pytest.raises(SpecError, match=r"model\.digest"):
        run_job(job(tmp_path, {"images": str(photos)}, model=same))


def test_options_that_change_no_row_do_not_matter(spark: SparkSession, tmp_path: Path, photos: Path) -> None:
    run_job(job(tmp_path, {"images": str(photos)}))
    result = run_job(
        job(tmp_path, {"images": str(photos)}, every="1 batch", engine="pandas", errors={"max_fraction": 0.5})
    )
    assert result.rows == 0


def test_an_output_without_its_checkpoint_is_refused(spark: SparkSession, tmp_path: Path, photos: Path) -> None:
    spec = job(tmp_path, {"images": str(photos)})
    run_job(spec)
    shutil.rmtree(tmp_path / "check")
    with pytest.raises(SinkError, match="already there, but the checkpoint"):
        run_job(spec)
    assert len(table(spark, tmp_path)) == 10


def test_a_lost_snapshot_is_told_and_done_again_when_its_mark_goes(
    spark: SparkSession, tmp_path: Path, photos: Path
) -> None:
    spec = job(tmp_path, {"images": str(photos)})
    run_job(spec)
    shutil.rmtree(tmp_path / "out" / "snapshot=1")
    with pytest.raises(SpecError, match="snapshot 1 is finished") as caught:
        run_job(spec)
    assert "000001.json" in str(caught.value.hint)
    (tmp_path / "check" / "done" / "000001.json").unlink()
    assert run_job(spec).rows == 4
    assert len(table(spark, tmp_path)) == 10


def test_an_interrupted_overwrite_of_a_snapshot_is_put_back(spark: SparkSession, tmp_path: Path, photos: Path) -> None:
    spec = job(tmp_path, {"images": str(photos)})
    run_job(spec)
    out = tmp_path / "out"
    (out / "snapshot=1").rename(out / f".snapshot=1.{'a' * 32}.old")
    shutil.copytree(out / "snapshot=0", out / f".snapshot=1.{'a' * 32}.new")
    assert run_job(spec).rows == 0
    assert len(table(spark, tmp_path)) == 10
    assert not [path.name for path in out.iterdir() if path.name.startswith(".snapshot")]
    (out / "snapshot=2").rename(out / f".snapshot=2.{'b' * 32}.old")
    shutil.copytree(out / "snapshot=0", out / f".snapshot=2.{'b' * 32}.new")
    run_job(spec, retry_codes=())
    assert len(table(spark, tmp_path)) == 10


def test_one_place_has_one_name(
    spark: SparkSession, tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_job(job(tmp_path, {"images": str(photos)}))
    assert run_job(job(tmp_path, {"images": f"file://{photos}/"}, sink={"path": f"{tmp_path}/out/"})).rows == 0
    other = tmp_path / "elsewhere"
    shutil.copytree(photos, other)
    with pytest.raises(SpecError, match=r"source\.images"):
        run_job(job(tmp_path, {"images": str(other)}))


def test_a_bad_start_is_no_hopeless_run(spark: SparkSession, tmp_path: Path, photos: Path) -> None:
    for number in range(3):
        (photos / f"a{number}.png").write_bytes(b"no image")
    result = run_job(job(tmp_path, {"images": str(photos)}, every="1 file", errors={"max_fraction": 0.5}))
    assert (result.rows, result.failed) == (13, 3)


def test_a_budget_ends_the_run_when_it_is_certain_and_keeps_what_is_committed(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "MIN_ROWS", 1)
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(12):
        photo(folder, number) if number < 3 else (folder / f"z{number}.png").write_bytes(b"no image")
    with pytest.raises(BudgetExceededError):
        run_job(job(tmp_path, {"images": str(folder)}, every="3 files", errors={"max_fraction": 0.4}))
    assert spark.read.parquet(str(tmp_path / "out")).count() in {6, 9}  # certain when 5 of 12 have failed


@pytest.mark.parametrize(
    ("blocks", "key"),
    [
        ({"source": {"query": "SELECT 1"}}, "source.query"),
        ({"source": {"images": "{photos}", "limit": 3}}, "source.limit"),
        ({"sink": {"path": None, "table": "t"}}, "sink.table"),
        ({"sink": {"partition_by": ["nothing"]}}, "sink.partition_by"),
        ({"resume": {"checkpoint": "{out}/check"}}, "resume.checkpoint"),
        ({"resume": {"checkpoint": "{photos}/check"}}, "resume.checkpoint"),
        ({"resume": {"checkpoint": "s3a://KEY:SECRET@bucket/check"}}, "resume.checkpoint"),
    ],
)
def test_what_cannot_be_resumed_is_told(
    spark: SparkSession, tmp_path: Path, photos: Path, blocks: dict[str, Any], key: str
) -> None:
    names = {"photos": str(photos), "out": str(tmp_path / "out")}
    plain = job(tmp_path, {"images": str(photos)}).model_dump(exclude_none=True)
    for name, given in blocks.items():
        block = {k: v.format(**names) if isinstance(v, str) else v for k, v in given.items()}
        plain[name] = block if name == "source" else {k: v for k, v in {**plain[name], **block}.items() if v}
    with pytest.raises((SpecError, SinkError)) as caught:
        run_job(JobSpec.model_validate(plain))
    assert caught.value.key == key


def test_partitioned_output(spark: SparkSession, tmp_path: Path, photos: Path) -> None:
    run_job(job(tmp_path, {"images": str(photos)}, sink={"partition_by": ["label"]}))
    assert (tmp_path / "out" / "snapshot=0" / "label=red").is_dir()
    assert len(table(spark, tmp_path)) == 10
