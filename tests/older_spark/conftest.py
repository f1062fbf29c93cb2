"""A session with Delta and Iceberg, whose packages are for Spark 3.5: `make test-older` runs this folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyspark
import pytest

from sparkinfer.core.errors import SparkInferError

PACKAGES = ("io.delta:delta-spark_2.12:3.2.0", "org.apache.iceberg:iceberg-spark-runtime-3.5_2.12:1.10.0")
"""From Maven Central; Delta 3.2.1 and later want Spark 3.5.3. On Spark 4.3 neither loads: its classes have changed."""

EXTENSIONS = (
    "io.delta.sql.DeltaSparkSessionExtension",
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
)


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """A small session in which `default.t` can be a Delta table and `lake.db.t` is an Iceberg table."""
    from pyspark.sql import SparkSession

    from sparkinfer.driver.session import find_java

    if not pyspark.__version__.startswith("3.5."):
        pytest.skip(f"Delta and Iceberg are tested on Spark 3.5 (make test-older); this is {pyspark.__version__}")
    try:
        find_java()
    except SparkInferError as error:
        _unavailable(error.render())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["LC_ALL"] = "C.UTF-8"
    place = tmp_path_factory.mktemp("spark")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sparkinfer" / "ivy"
    builder = SparkSession.builder.master("local[2,4]").appName("sparkinfer-tests")
    for key, value in {
        "spark.jars.packages": ",".join(PACKAGES),
        "spark.jars.ivy": str(cache),
        "spark.sql.extensions": ",".join(EXTENSIONS),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": str(place / "lake"),
        "spark.databricks.delta.snapshotPartitions": "1",  # of the log, not of the data: 50 tasks by default
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        "spark.driver.host": "localhost",
        "spark.driver.bindAddress": "localhost",
        "spark.local.dir": str(place / "local"),
        "spark.sql.warehouse.dir": str(place / "warehouse"),
        "spark.driver.extraJavaOptions": f"-Dderby.system.home={place} -XX:TieredStopAtLevel=1",
    }.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
    except Exception as error:  # noqa: BLE001 - of what kind it is depends on where Java stopped
        _unavailable(f"Spark with {' and '.join(PACKAGES)} does not start; are they to be had? {error}")
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


def _unavailable(message: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)
