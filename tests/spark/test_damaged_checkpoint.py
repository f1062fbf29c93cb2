"""Checkpoints and outputs that are not what a run left: told by name, and nothing lost or doubled."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from sparkinfer.core.errors import SinkError, SpecError, UserError
from sparkinfer.core.spec import JobSpec
from sparkinfer.driver.job import run_job
from tests.spark.test_resume import job, photo, table, ten_photos

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def _finished_once(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten images in three snapshots, and a copy of what is there then."""
    place = tmp_path_factory.mktemp("finished")
    run_job(job(place, {"images": str(ten_photos(place))}))
    for name in ("check", "out"):
        shutil.copytree(place / name, place / "kept" / name)
    return place


@pytest.fixture
def finished(_finished_once: Path) -> Path:
    """A place where a job of ten images, `spec_of`, has finished."""
    for name in ("check", "out"):
        shutil.rmtree(_finished_once / name)
        shutil.copytree(_finished_once / "kept" / name, _finished_once / name)
    return _finished_once


def spec_of(finished: Path) -> JobSpec:
    return job(finished, {"images": str(finished / "photos")})


@pytest.mark.parametrize("lost", [["inputs/000001.parquet"], ["inputs"], ["inputs/000000.parquet", "done/000000.json"]])
def test_inputs_that_are_gone_double_nothing(spark: SparkSession, finished: Path, lost: list[str]) -> None:
    spec = spec_of(finished)
    for name in lost:
        path = finished / "check" / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(SpecError, match=r"inputs/00000\d.parquet is missing"):
        run_job(spec)
    assert len(table(spark, finished)) == 10


def test_another_parquet_in_place_of_inputs_doubles_nothing(spark: SparkSession, finished: Path) -> None:
    spec = spec_of(finished)
    inputs = finished / "check" / "inputs"
    (part,) = (finished / "out" / "snapshot=0").glob("part*.parquet")
    foreign = finished / "foreign.parquet"
    pq.write_table(pa.table({"x": [1]}), foreign)
    unsigned = finished / "unsigned.parquet"
    pq.write_table(pq.read_table(inputs / "000001.parquet").replace_schema_metadata(), unsigned)
    elsewhere = finished / "elsewhere.parquet"
    of_another = pq.read_table(inputs / "000001.parquet")
    of_another = of_another.replace_schema_metadata({**of_another.schema.metadata, b"sparkinfer.checkpoint": b"0" * 32})
    pq.write_table(of_another, elsewhere)
    true = (inputs / "000001.parquet").read_bytes()
    for file, said in {
        part: "holds something else",
        foreign: "holds something else",
        unsigned: "holds something else",
        elsewhere: "holds inputs of another checkpoint",
        inputs / "000000.parquet": "holds the inputs of snapshot 0",
    }.items():
        shutil.copy(file, inputs / "000001.parquet")
        for retry in (None, ()):
            with pytest.raises(SpecError, match=rf"000001.parquet {said}") as caught:
                run_job(spec, retry_codes=retry)
            assert caught.value.hint
    (inputs / "000001.parquet").write_bytes(true)
    assert run_job(spec).rows == 0
    assert len(table(spark, finished)) == 10


def test_an_input_of_two_snapshots_is_told(spark: SparkSession, finished: Path) -> None:
    spec = spec_of(finished)
    first, second = (finished / "check" / "inputs" / f"00000{number}.parquet" for number in (0, 1))
    mine = pq.read_table(second)
    both = pa.concat_tables([mine, pq.read_table(first).slice(2, 1)]).replace_schema_metadata(mine.schema.metadata)
    pq.write_table(both, second)
    with pytest.raises(
        SpecError, match=r"000001\.parquet holds 'file:.*photo 002.png', which 000000\.parquet holds too"
    ):
        run_job(spec)


def test_a_damaged_page_of_inputs_is_told(spark: SparkSession, finished: Path) -> None:
    spec = spec_of(finished)
    inputs = finished / "check" / "inputs" / "000001.parquet"
    column = pq.ParquetFile(inputs).metadata.row_group(0).column(0)
    start = column.data_page_offset if column.dictionary_page_offset is None else column.dictionary_page_offset
    content = bytearray(inputs.read_bytes())
    content[start + column.total_compressed_size - 1] ^= 1  # the last byte of its last page, which no header reaches
    inputs.write_bytes(content)
    with pytest.raises(SpecError, match=r"000001\.parquet cannot be read"):
        run_job(spec)
    assert len(table(spark, finished)) == 10


@pytest.mark.parametrize("name", ["snapshot=00", "snapshot=1 (copy)", "part-0.parquet", "label=red"])
def test_what_readers_would_count_and_no_snapshot_is_gets_refused(
    spark: SparkSession, finished: Path, name: str
) -> None:
    spec = spec_of(finished)
    stray = finished / "out" / name
    shutil.copytree(finished / "out" / "snapshot=0", stray)
    for retry in (None, ()):
        with pytest.raises(SinkError, match=re.escape(f"holds {name!r}, which is no snapshot")):
            run_job(spec, retry_codes=retry)
    stray.rename(finished / "out" / f".{name}")
    assert run_job(spec).rows == 0
    assert len(table(spark, finished)) == 10


@pytest.mark.parametrize("file", ["lock", "job.json", "inputs/000001.parquet", "done/000001.json", "done", "inputs"])
def test_a_folder_or_a_file_in_the_wrong_place_is_told(spark: SparkSession, finished: Path, file: str) -> None:
    spec = spec_of(finished)
    path = finished / "check" / file
    if path.is_dir():
        shutil.rmtree(path)
        path.write_text("x")
    else:
        path.unlink()
        path.mkdir()
    with pytest.raises(UserError) as caught:
        run_job(spec)
    assert str(path) in caught.value.message
    assert caught.value.key == "resume.checkpoint"
    assert caught.value.hint
    assert len(table(spark, finished)) == 10


def test_a_mark_without_rows_is_told(spark: SparkSession, finished: Path) -> None:
    spec = spec_of(finished)
    (finished / "check" / "done" / "000001.json").write_text('{"rows": "many"}')
    shutil.rmtree(finished / "out" / "snapshot=1")
    with pytest.raises(SpecError, match=r"done/000001\.json names no number of rows"):
        run_job(spec)


def test_a_full_disk_under_the_checkpoint_is_told(
    spark: SparkSession, finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/some/where")

    new = photo(finished / "photos", 10)
    try:
        monkeypatch.setattr(pq, "write_table", full)
        with pytest.raises(UserError, match=r"000003\.parquet' cannot be written: No space left on device") as caught:
            run_job(spec_of(finished))
    finally:
        new.unlink()
    assert "the same command again" in str(caught.value.hint)
    assert len(table(spark, finished)) == 10


def test_an_emptied_snapshot_is_told(spark: SparkSession, finished: Path) -> None:
    spec = spec_of(finished)
    for part in (finished / "out" / "snapshot=1").glob("part*"):
        part.unlink()
    with pytest.raises(SpecError, match="has no rows in snapshot=1"):
        run_job(spec)


@pytest.mark.parametrize("file", ["job.json", "inputs/000001.parquet", "done/000001.json"])
@pytest.mark.parametrize("damage", [b"", b"\x00\xffnonsense"])
def test_damage_names_the_file_and_loses_nothing(spark: SparkSession, finished: Path, file: str, damage: bytes) -> None:
    spec = spec_of(finished)
    (finished / "check" / file).write_bytes(damage)
    if file.startswith("done"):
        shutil.rmtree(finished / "out" / "snapshot=1")  # else nobody needs to look at the mark
    with pytest.raises(SpecError, match="damaged") as caught:
        run_job(spec)
    assert file in caught.value.message
    assert caught.value.hint
    assert spark.read.parquet(str(finished / "out")).count() == (6 if file.startswith("done") else 10)
