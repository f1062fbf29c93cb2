"""What `test_thrift` asks about: a source table and its predictions in the Hive metastore of the current folder.

Runs in a process of its own, as a job does: only one process at a time can open such a metastore.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession

from sparkinfer.core.spec import JobSpec
from sparkinfer.driver.job import run_job
from tests.executor.chain import png_of
from tests.spark.models import fake_model_file

PHOTOS = [
    ("sea.png", png_of(10, 20, 220), "beach"),
    ("towel.png", png_of(200, 10, 20), "beach"),
    ("ball.png", png_of(204, 10, 20), "beach"),
    ("notes.txt", b"no image", "beach"),
    ("tree.png", png_of(20, 210, 10), "city"),
    ("night.png", png_of(10, 20, 102), "city"),
    ("empty.png", b"", "city"),
    ("list.txt", b"no image either", "city"),
]


def main(folder: Path) -> None:
    """Saves the photos as a table and predicts them, twice: the second run replaces the table."""
    spark = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.pyspark.python", sys.executable)
        .config("spark.sql.catalogImplementation", "hive")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    spark.createDataFrame(PHOTOS, "path string, content binary, album string").write.saveAsTable("photos")
    block = {
        "source": {"table": "photos"},
        "model": {"path": str(fake_model_file(folder)), "version": "7"},
        "preprocess": {"resize": None, "crop": [8, 8], "mean": [0], "std": [1]},
        "postprocess": {"activation": "none", "check": False},
        "sink": {"table": "predictions"},
    }
    run_job(JobSpec.model_validate({**block, "source": {"table": "photos", "limit": 2}}))
    run_job(JobSpec.model_validate({**block, "sink": {"table": "predictions", "mode": "overwrite"}}))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
