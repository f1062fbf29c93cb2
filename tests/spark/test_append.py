"""Rows added to folders and tables while others add rows too, and after others were killed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from sparkinfer.core.errors import JobFailedError, SinkError
from sparkinfer.core.spec import SinkSpec
from sparkinfer.driver.listing import hadoop_path
from sparkinfer.driver.sinks import append
from sparkinfer.driver.sinks.append import move_in
from sparkinfer.driver.sinks.checks import check_layout
from sparkinfer.driver.write import check_target, put_back, write

pytestmark = pytest.mark.spark

A, B, C = "a" * 32, "b" * 32, "c" * 32


@pytest.fixture
def table_name(spark: SparkSession) -> Iterator[str]:
    yield "added_to"
    for row in spark.sql("SHOW TABLES LIKE 'added_to*'").collect():
        spark.sql(f"DROP TABLE {row['tableName']}")


def numbers(
    spark: SparkSession, start: int, rows: int, *, waits_for: Path | None = None, fails: bool = False
) -> DataFrame:
    """Rows `start` and following in two tasks; the second one waits for a file in the midst of its rows, or fails."""
    end = start + rows

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            is_second = end - 1 in batch["n"].to_pylist()
            yield batch.slice(0, 1)
            while is_second and waits_for is not None and not waits_for.exists():
                time.sleep(0.02)
            if is_second and fails:
                raise ValueError("this task fails")
            yield batch.slice(1)

    # Long enough that a row leaves Python's buffer at once.
    ids = spark.range(start, end, 1, 2).selectExpr("id AS n", "id % 3 AS part", "repeat('x', 200000) AS pad")
    return ids.mapInArrow(task, "n long, part long, pad string")


def has_one_task_done_and_one_begun(place: Path) -> bool:
    done = [path for path in place.rglob("task_*") if any(path.iterdir())]
    begun = list(place.rglob("attempt_*_m_000001_*/**/part-*"))
    return bool(done and begun)


@pytest.mark.parametrize(("kind", "fails"), [("parquet", False), ("parquet", True), ("table", False), ("table", True)])
def test_two_runs_at_once_lose_nothing(
    spark: SparkSession, tmp_path: Path, table_name: str, kind: str, *, fails: bool
) -> None:
    if kind == "table":
        sink = SinkSpec(table=table_name, mode="append")
        place = Path(spark.conf.get("spark.sql.warehouse.dir").removeprefix("file:")) / table_name
    else:
        sink = SinkSpec(path=str(tmp_path / "out"), format=kind, mode="append")
        place = tmp_path / "out"
    write(numbers(spark, 0, 2), sink, C)
    go = tmp_path / "go"
    with ThreadPoolExecutor(1) as other:
        slow = other.submit(write, numbers(spark, 100, 6, waits_for=go), sink, A)
        try:
            deadline = time.monotonic() + 120
            while not has_one_task_done_and_one_begun(place) and not slow.done() and time.monotonic() < deadline:
                time.sleep(0.02)
            with suppress(Exception):
                write(numbers(spark, 200, 6, fails=fails), sink, B)
        finally:
            go.touch()
        if kind == "table" and fails:  # Spark clears away the unfinished files of both: that is told
            with pytest.raises(JobFailedError, match=A):
                slow.result()
            return
        slow.result()
    table = spark.table(table_name) if kind == "table" else spark.read.format(kind).load(str(place))
    expected = [0, 1, *range(100, 106), *(() if fails else range(200, 206))]
    assert sorted(row["n"] for row in table.collect()) == expected
    assert not [path for path in place.iterdir() if path.name.startswith((".added", "_temporary"))]


@pytest.mark.parametrize("kind", ["path", "table"])
def test_what_a_killed_run_had_committed_by_tasks_stays_out(
    spark: SparkSession, tmp_path: Path, table_name: str, kind: str
) -> None:
    if kind == "table":
        sink = SinkSpec(table=table_name, mode="append")
        place = Path(spark.conf.get("spark.sql.warehouse.dir").removeprefix("file:")) / table_name
    else:
        sink, place = SinkSpec(path=str(tmp_path / "out"), mode="append"), tmp_path / "out"
    write(numbers(spark, 0, 2), sink, A)
    dead = place / "_temporary" / "0" / "task_202612010000000000000_0001_m_000000"
    numbers(spark, 50, 2).write.parquet(str(dead))
    (dead / "_SUCCESS").unlink()
    write(numbers(spark, 100, 2), sink, B)
    table = spark.table(table_name) if kind == "table" else spark.read.parquet(str(place))
    assert sorted(row["n"] for row in table.collect()) == [0, 1, 100, 101]
    assert dead.exists()


def test_a_run_that_died_while_its_files_moved_has_added_nothing(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    sink = SinkSpec(path=str(out), mode="append", partition_by=["part"])
    write(numbers(spark, 0, 2), sink, A)
    dead = out / f".added.{B}.new"
    numbers(spark, 50, 2).coalesce(1).write.partitionBy("part").parquet(str(dead))
    moved, *others = sorted(dead.glob("part=*/*.parquet"))
    assert others
    (dead / "_moved.json").write_text(json.dumps([str(path.relative_to(dead)) for path in (moved, *others)]))
    (out / moved.relative_to(dead)).parent.mkdir(exist_ok=True)
    moved.rename(out / moved.relative_to(dead))
    assert spark.read.parquet(str(out)).count() == 3
    write(numbers(spark, 100, 2), sink, C)
    assert sorted(row["n"] for row in spark.read.parquet(str(out)).collect()) == [0, 1, 100, 101]
    assert not dead.exists()


def test_rows_that_have_all_moved_stay_whatever_becomes_of_their_hidden_folder(
    spark: SparkSession, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    left = out / f".added.{B}.new"
    numbers(spark, 50, 2).write.parquet(str(left))
    move_in(spark, hadoop_path(spark, str(left))[0], hadoop_path(spark, str(out))[0])
    assert left.exists()  # as if the file system had gone away just then
    write(numbers(spark, 100, 2), SinkSpec(path=str(out), mode="append"), C)
    assert sorted(row["n"] for row in spark.read.parquet(str(out)).collect()) == [50, 51, 100, 101]
    assert not left.exists()


def test_what_could_not_be_taken_out_is_left_to_the_next_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    sink = SinkSpec(path=str(out), mode="append", partition_by=["part"])
    numbers(spark, 0, 1).write.partitionBy("part").parquet(str(out))
    (out / "part=2").write_text("a file is in the way")
    monkeypatch.setattr(append, "take_out", lambda *_: None)  # the file system has gone away
    with pytest.raises(Exception, match="part=2"):
        write(numbers(spark, 100, 6), sink, A)
    monkeypatch.undo()
    (out / "part=2").unlink()
    write(numbers(spark, 200, 1), sink, B)
    assert sorted(row["n"] for row in spark.read.parquet(str(out)).collect()) == [0, 200]


def test_files_that_cannot_move_are_all_taken_out_again(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    sink = SinkSpec(path=str(out), mode="append", partition_by=["part"])
    numbers(spark, 0, 1).write.partitionBy("part").parquet(str(out))
    (out / "part=2").write_text("a file is in the way")  # of the last partition
    with pytest.raises(Exception, match="part=2"):
        write(numbers(spark, 100, 6), sink, A)
    (out / "part=2").unlink()
    assert [row["n"] for row in spark.read.parquet(str(out)).collect()] == [0]


def test_added_rows_have_all_partitions_of_the_folder(spark: SparkSession, tmp_path: Path) -> None:
    out = tmp_path / "out"
    numbers(spark, 0, 2).selectExpr("n", "part", "n AS m").write.partitionBy("part", "m").parquet(str(out))
    check_layout(spark, SinkSpec(path=str(out), mode="append", partition_by=["part", "m"]))
    with pytest.raises(SinkError, match="partitioned by part, m, not by part"):
        check_layout(spark, SinkSpec(path=str(out), mode="append", partition_by=["part"]))


@pytest.mark.parametrize("mode", ["error", "overwrite", "append"])
@pytest.mark.parametrize("left", ["_temporary/0", "part-0.parquet"])
def test_a_folder_in_the_way_of_a_new_table_is_told_before_the_model_runs(
    spark: SparkSession, tmp_path: Path, table_name: str, left: str, mode: str
) -> None:
    place = Path(spark.conf.get("spark.sql.warehouse.dir").removeprefix("file:")) / table_name
    (place / left).mkdir(parents=True)
    try:
        with pytest.raises(SinkError) as caught:
            check_target(spark, SinkSpec(table=table_name, mode=mode), ["n"])
    finally:
        (place / left).rmdir()
        with suppress(OSError):
            (place / "_temporary").rmdir()
        place.rmdir()
    assert str(place) in caught.value.message
    assert "delete" in str(caught.value.hint)
    assert ("interrupted" in caught.value.message) == (left == "_temporary/0")
    check_target(spark, SinkSpec(table=table_name, mode=mode), ["n"])


def test_an_interrupted_overwrite_of_a_table_is_put_back(spark: SparkSession, table_name: str) -> None:
    numbers(spark, 0, 2).write.saveAsTable(f"{table_name}_{A}_old")
    numbers(spark, 100, 2).write.saveAsTable(f"{table_name}_{A}")
    sink = SinkSpec(table=table_name, mode="append")
    check_target(spark, sink, ["n"])
    assert sorted(row["n"] for row in spark.table(table_name).collect()) == [0, 1]
    assert [row["tableName"] for row in spark.sql(f"SHOW TABLES LIKE '{table_name}*'").collect()] == [table_name]


def test_an_old_table_goes_where_its_successor_has_come(spark: SparkSession, table_name: str) -> None:
    numbers(spark, 0, 2).write.saveAsTable(f"{table_name}_{A}_old")
    check_target(spark, SinkSpec(table=table_name), ["n"])  # dropped on purpose: it stays away
    assert not spark.catalog.tableExists(table_name)
    numbers(spark, 100, 2).write.saveAsTable(table_name)
    write(numbers(spark, 200, 2), SinkSpec(table=table_name, mode="overwrite"), B)
    check_target(spark, SinkSpec(table=table_name, mode="append"), ["n"])
    assert sorted(row["n"] for row in spark.table(table_name).collect()) == [200, 201]
    assert [row["tableName"] for row in spark.sql(f"SHOW TABLES LIKE '{table_name}*'").collect()] == [table_name]


def test_what_is_left_of_a_replaced_folder_never_returns(spark: SparkSession, tmp_path: Path) -> None:
    out, old = tmp_path / "out", tmp_path / f".out.{A}.old"
    old.mkdir()
    (tmp_path / f".out.{B}.new").mkdir()  # of another run
    assert not put_back(spark, str(out))
    assert old.exists()
    (tmp_path / f".out.{A}.new").mkdir()
    assert put_back(spark, str(out))
    assert (out.exists(), old.exists()) == (True, False)


@pytest.mark.parametrize("mode", ["error", "append"])
def test_a_full_disk_is_one_line(spark: SparkSession, tmp_path: Path, mode: str) -> None:
    rows = numbers(spark, 0, 2)
    sink = SinkSpec(path=str(tmp_path / "out"), mode=mode)

    def full(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            raise OSError(28, "No space left on device")
        yield from ()

    with pytest.raises(JobFailedError) as caught:
        write(rows.mapInArrow(full, rows.schema), sink, A)
    assert caught.value.exit_status == 1
    assert caught.value.message.startswith("No space left on device")
    assert str(tmp_path / "out") in caught.value.message
    assert len(caught.value.message.splitlines()) == 1
