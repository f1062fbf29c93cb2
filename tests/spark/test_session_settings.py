"""Settings that are given to Java, and not to us, reach the context that we make: those of a cluster, for one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sparkinfer.driver.session import find_java

pytestmark = pytest.mark.spark

ROOT = Path(__file__).parents[2]

SCRIPT = """
from sparkinfer.core.spec import JobSpec
from sparkinfer.driver.session import get_session

blocks = {"source": {"images": "i"}, "model": {"path": "m.onnx"}, "sink": {"path": "o"}}
spark = get_session(JobSpec.model_validate(blocks | {"spark": {"master": "local[1]", "conf": {"spark.two": "job"}}}))
hadoop = spark.sparkContext._jsc.hadoopConfiguration()
print("found", *(spark.conf.get(f"spark.{name}", None) for name in ("one", "two", "three")), hadoop.get("four"))
"""


def test_defaults_and_submit_arguments_count_and_the_job_file_wins(tmp_path):
    (tmp_path / "spark-defaults.conf").write_text("spark.one defaults\nspark.two defaults\nspark.hadoop.four hadoop\n")
    arguments = "--conf spark.two=submit --conf spark.three=submit --conf spark.ui.enabled=false pyspark-shell"
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java()),
        "SPARK_CONF_DIR": str(tmp_path),
        "PYSPARK_SUBMIT_ARGS": arguments,
        "PYTHONPATH": str(ROOT),
    }
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=False, capture_output=True, text=True, env=environment
    )
    assert "found defaults job submit hadoop" in answer.stdout, answer.stderr[-2000:]
