"""sparkinfer as `sparkinfer run` runs it: `run_job` with the defaults of a job. Runs in sparkinfer's environment."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from pyspark.sql import SparkSession

from sparkinfer.core.spec import JobSpec
from sparkinfer.driver.job import run_job
from tests.benchmarks.contestants.job import Job, RunJob, contend
from tests.benchmarks.contestants.spark_session import SPARK_CONF


def _spec(job: Job, output: Path, decode: str) -> JobSpec:
    return JobSpec.model_validate(
        {
            "source": {"images" if job.stored == "folder" else "parquet": job.images},
            "model": {"path": job.onnx, "device": "cpu"},
            "preprocess": {**asdict(job.recipe), "decode": decode},
            "sink": {"path": str(output)},
            "spark": {"master": f"local[{job.workers}]", "conf": SPARK_CONF},
        }
    )


@contextmanager
def _open_session(job: Job) -> Iterator[RunJob]:
    # The first job starts the session, later ones find it.
    yield lambda output: _run(job, output)
    spark = SparkSession.getActiveSession()
    if spark is not None:
        spark.stop()


def _run(job: Job, output: Path) -> None:
    run_job(_spec(job, output, decode="fast" if "fast" in sys.argv[2:] else "exact"))


if __name__ == "__main__":
    contend(_open_session)
