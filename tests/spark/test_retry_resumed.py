"""Failed rows of a resumable job's output, run again: by the checkpoint's own job, which then knows what was read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from sparkinfer.core.errors import SpecError
from sparkinfer.driver.job import run_job
from tests.executor.chain import png_of
from tests.spark.test_resume import COLOURS, RAW, job, photo, table, ten_photos

pytestmark = pytest.mark.spark


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Ten images of three colours."""
    return ten_photos(tmp_path)


def test_a_retry_belongs_to_the_job_of_the_checkpoint(spark: SparkSession, tmp_path: Path, photos: Path) -> None:
    (photos / "photo 000.png").write_bytes(png_of(*COLOURS[0], size=(40, 40)))
    source = {"images": str(photos)}
    tight = {"preprocess": {**RAW, "max_pixels": 1000}}
    run_job(job(tmp_path, source, **tight))
    assert table(spark, tmp_path)["photo 000.png"] == ("TOO_MANY_PIXELS", 0)
    other = {**tight, "postprocess": {"activation": "none", "check": False, "top_k": 1}}
    with pytest.raises(SpecError, match=r"belongs to another job:\n +postprocess.top_k: 5 then, 1 now\n  key"):
        run_job(job(tmp_path, source, **other), retry_codes=())
    with pytest.raises(SpecError, match=r"belongs to another job:\n +model.version: null then, \"2\" now\n  key"):
        run_job(job(tmp_path, source, **tight, model={"version": "2"}), retry_codes=())
    wrong = job(tmp_path, source, **tight)
    assert wrong.resume is not None
    wrong = wrong.model_copy(
        update={"resume": wrong.resume.model_copy(update={"checkpoint": str(tmp_path / "mistyped")})}
    )
    with pytest.raises(SpecError, match="mistyped' is no job's checkpoint"):
        run_job(wrong, retry_codes=())
    assert not (tmp_path / "mistyped").exists()
    assert table(spark, tmp_path)["photo 000.png"] == ("TOO_MANY_PIXELS", 0)
    # Limits, attempts and batches are what a retry is for. The checkpoint goes on with the job that mended the rows.
    ample = {"preprocess": {**RAW, "max_pixels": 10_000}, "batch": {"size": 1}, "errors": {"row_timeout": "60s"}}
    assert run_job(job(tmp_path, source, **ample), retry_codes=()).errors == {}
    assert table(spark, tmp_path)["photo 000.png"] == ("red", 0)
    assert run_job(job(tmp_path, source, **ample)).rows == 0
    with pytest.raises(SpecError, match=r"preprocess.max_pixels: 10000 then, 1000 now"):
        run_job(job(tmp_path, source, **tight))


def test_after_a_retry_the_files_it_read_have_changed_no_more(
    spark: SparkSession, tmp_path: Path, photos: Path
) -> None:
    for number in (1, 6):
        (photos / f"photo {number:03d}.png").write_bytes(b"no image")
    spec = job(tmp_path, {"images": str(photos)})
    run_job(spec)
    photo(photos, 1)
    (photos / "photo 004.png").write_bytes(png_of(10, 20, 220) + b"longer")  # has a row, which stays
    assert run_job(spec).changed == 2
    assert run_job(spec, retry_codes=()).retried == 2
    result = run_job(spec)
    assert (result.changed, result.finished_before, result.rows) == (1, 10, 0)
    assert table(spark, tmp_path)["photo 001.png"] == ("green", 0)
    # Whatever wrote a snapshot, its files have one schema: readers put them together as they are.
    files = sorted((tmp_path / "out").glob("snapshot=*/*.parquet"))
    whole = pa.concat_tables([pq.ParquetFile(file).read() for file in files])
    assert whole.num_rows == 10
    assert all(field.nullable for field in whole.schema)
