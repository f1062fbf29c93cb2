"""A job on two nodes in which tasks are tried again and run twice; `test_budget` starts it in a process of its own.

Writes `result.json` with the job's counts, the table's, and proof that tasks were tried again and run twice.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from sparkinfer.core.spec import JobSpec
from sparkinfer.driver.job import run_job
from tests.executor.chain import png_of
from tests.spark.models import fake_model_file

ROWS, TASKS = 240, 8
RAISING, HANGING = {1, 4}, 6


def main(folder: Path, master: str) -> None:
    """Runs the job and writes what came of it."""
    session = (
        SparkSession.builder.master(master)
        .config("spark.executorEnv.PYTHONPATH", os.environ["PYTHONPATH"])
        .config("spark.executor.memory", "512m")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.speculation", "true")
        .config("spark.speculation.interval", "100ms")
        .config("spark.speculation.multiplier", "1.1")
        .config("spark.speculation.quantile", "0.5")
        .config("spark.speculation.minTaskRuntime", "1s")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    try:
        result = run(session, folder)
    finally:
        session.stop()
    (folder / "result.json").write_text(json.dumps(result))


def run(spark: SparkSession, folder: Path) -> dict[str, object]:
    """The job and its counts."""
    spark.udf.register("trouble", trouble(folder), "binary")
    good, text = png_of(200, 10, 20), b"no image"
    # A quarter EMPTY, an eighth UNSUPPORTED_FORMAT, spread over all tasks.
    content = F.when(F.col("id") % 4 == 0, F.lit(b"")).when(F.col("id") % 8 == 1, F.lit(text)).otherwise(F.lit(good))
    images = spark.range(0, ROWS, 1, TASKS).select("id", F.concat(F.lit("p"), "id").alias("path"), content.alias("c"))
    images.createOrReplaceTempView("images")
    spec = JobSpec.model_validate(
        {
            "source": {"query": "SELECT path, trouble(id, c) AS content FROM images"},
            "model": {"path": str(fake_model_file(folder))},
            "preprocess": {"resize": None, "crop": [8, 8], "mean": [0], "std": [1], "rescale": 1},
            "postprocess": {"activation": "none", "check": False},
            "sharding": "none",
            "sink": {"path": str(folder / "out")},
            "errors": {"max_fraction": 0.5},
        }
    )
    job = run_job(spec)
    table = spark.read.parquet(spec.sink.target)
    errors = {row["error_code"]: row["count"] for row in table.groupBy("error_code").count().collect()}
    errors.pop(None)
    return {
        "job": {"rows": job.rows, "errors": job.errors},
        "table": {"rows": table.count(), "errors": errors},
        "distinct": table.select("path").distinct().count(),
        "raised": len(list(folder.glob("raised-*"))),
        "speculative": len(list(folder.glob("hung-*-0"))) and len(list(folder.glob("hung-*-1"))),
    }


def trouble(folder: Path):
    """A function of a row that lets the first attempts at some tasks fail or hang at their last row."""
    last = ROWS // TASKS - 1
    place = str(folder)

    def give(number: int, content: bytes) -> bytes:
        import threading

        context = TaskContext.get()
        assert context is not None
        task, attempt = context.partitionId(), context.attemptNumber()
        if number % (last + 1) == last:
            if task in RAISING and attempt == 0:
                Path(place, f"raised-{task}").touch()
                raise RuntimeError("this attempt was to fail")
            if task == HANGING:
                Path(place, f"hung-{task}-{attempt}").touch()
                if attempt == 0:
                    threading.Event().wait()
        return bytes(content)

    return give


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
