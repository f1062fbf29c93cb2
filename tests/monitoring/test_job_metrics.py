"""Jobs with `metrics:` in the session of the other Spark tests."""

from __future__ import annotations

import socket
from collections import Counter
from pathlib import Path

import pytest

from sparkinfer.core.errors import BudgetExceededError, SpecError
from sparkinfer.core.spec import JobSpec
from sparkinfer.driver.job import run_job
from tests.executor.chain import png_of
from tests.monitoring.fake_gateway import Gateway
from tests.monitoring.panels import told_by
from tests.monitoring.servers import LOOPBACK
from tests.spark.models import fake_model_file, worker_calls

pytestmark = pytest.mark.spark


def job(folder: Path, **metrics) -> JobSpec:
    """Three good images, an empty file, a text, a file that is gone, one named twice; half of the rows may fail."""
    photos = folder / "photos"
    photos.mkdir()
    for number, colour in enumerate([(200, 10, 20), (20, 210, 10), (10, 20, 220)]):
        (photos / f"{number}.png").write_bytes(png_of(*colour))
    (photos / "empty.png").write_bytes(b"")
    (photos / "notes.png").write_text("no image")
    names = ["0.png", "1.png", "2.png", "empty.png", "notes.png", "gone.png", "notes.png", "notes.png"]
    (folder / "paths.csv").write_text("\n".join(["path", *(str(photos / name) for name in names)]))
    return JobSpec.model_validate(
        {
            "name": "my photos",
            "source": {"paths": str(folder / "paths.csv")},
            "model": {"path": str(fake_model_file(folder))},
            "preprocess": {"resize": None, "crop": [8, 8]},
            "sink": {"path": str(folder / "out")},
            "metrics": metrics,
        }
    )


def test_what_is_pushed_are_the_tables_counts_also_over_the_budget(spark, tmp_path):
    with Gateway() as gateway, pytest.raises(BudgetExceededError, match="5 of 8 rows failed"):
        run_job(job(tmp_path, push=gateway.url))
    table = spark.read.parquet(str(tmp_path / "out")).collect()
    errors = Counter(row["error_code"] for row in table if row["error_code"])
    assert errors == {"EMPTY": 1, "UNSUPPORTED_FORMAT": 3, "READ_FAILED": 1}
    ((_, path, page),) = gateway.pushed
    assert path.startswith("/metrics/job/sparkinfer-pushed/name@base64/")
    assert told_by(page) == (8, errors)
    assert 'sparkinfer_run_info{model="colours",model_version="",name="my photos",run_id="' in page


def test_a_port_in_use_ends_the_job_before_the_model_is_called(spark, tmp_path):
    with socket.create_server((LOOPBACK, 0)) as other, pytest.raises(SpecError) as caught:
        run_job(job(tmp_path, port=other.getsockname()[1], address=LOOPBACK))
    assert caught.value.key == "metrics.port"
    assert worker_calls(tmp_path, "infer") == []
    assert not (tmp_path / "out").exists()
