"""`sparkinfer run` with a package that Spark fetches for itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.executor.chain import png_of
from tests.older_spark.conftest import PACKAGES
from tests.spark.models import fake_model_file

pytestmark = pytest.mark.spark


def test_a_job_file_with_delta(spark, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    (photos / "red.png").write_bytes(png_of(200, 10, 20))
    (photos / "empty.png").touch()
    job = {
        "source": {"images": str(photos)},
        "model": {"path": str(fake_model_file(tmp_path))},
        "preprocess": {"resize": None, "crop": [8, 8]},
        "sink": {"path": str(tmp_path / "out"), "format": "delta"},
        "report": str(tmp_path / "report"),
        "spark": {
            "master": "local[2]",
            "conf": {
                "spark.jars.packages": PACKAGES[0],
                "spark.jars.ivy": spark.conf.get("spark.jars.ivy"),
                "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
                "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
                "spark.ui.enabled": False,
                "spark.driver.bindAddress": "127.0.0.1",
                "spark.driver.host": "127.0.0.1",
            },
        },
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(job))
    command = [Path(sys.executable).with_name("sparkinfer"), "run", tmp_path / "job.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "report" / "report.json").read_text())["errors"] == {"EMPTY": 1}
    assert spark.read.format("delta").load(str(tmp_path / "out")).count() == 2
