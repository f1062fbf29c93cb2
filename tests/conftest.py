"""Fixtures of the whole suite."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import settings

from sparkinfer.core.errors import SparkInferError

# No test is timed, and a busy machine is slow.
settings.register_profile("sparkinfer", deadline=None)
settings.load_profile("sparkinfer")


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """One small SparkSession for all Spark tests, with Python workers of this environment."""
    from pyspark.sql import SparkSession

    from sparkinfer.driver.session import find_java

    try:
        find_java()
    except SparkInferError as error:
        if os.environ.get("CI"):
            pytest.fail(error.render())
        pytest.skip(error.render())
    # Read when the JVM starts: `spark.pyspark.python` comes too late for a session made in Python.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.pop("HADOOP_CONF_DIR", None)
    os.environ["LC_ALL"] = "C.UTF-8"  # Java opens names of the locale's characters only
    place = tmp_path_factory.mktemp("spark")
    session = (
        SparkSession.builder.master("local[2,4]")  # a failed task is tried again, as on a cluster
        .appName("sparkinfer-tests")
        .config("spark.pyspark.python", sys.executable)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.host", "localhost")
        .config("spark.driver.bindAddress", "localhost")
        .config("spark.log.level", "ERROR")
        .config("spark.local.dir", str(place / "local"))
        .config("spark.sql.warehouse.dir", str(place / "warehouse"))
        .config(
            "spark.driver.extraJavaOptions",
            f"-Dderby.system.home={place} -Djava.io.tmpdir={place} -XX:TieredStopAtLevel=1",
        )
        .getOrCreate()
    )
    yield session
    session.stop()
