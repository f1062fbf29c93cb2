"""The settings that are shipped for clusters: Spark knows every one, and they keep what their comments promise."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

FILE = Path(__file__).parents[2] / "conf" / "spark-defaults.cluster.conf"
DECLARED_BY = (
    "org.apache.spark.internal.config.package$",
    "org.apache.spark.internal.config.Worker$",
    "org.apache.spark.deploy.yarn.config.package$",
)


@pytest.fixture(scope="module")
def settings() -> dict[str, str]:
    lines = (line.split() for line in FILE.read_text().splitlines() if line and not line.startswith("#"))
    return dict(lines)


def test_spark_knows_every_setting(spark, settings):
    jvm = spark.sparkContext._jvm
    for name in DECLARED_BY:
        jvm.java.lang.Class.forName(name)
    entry = jvm.org.apache.spark.internal.config.ConfigEntry
    unknown = [key for key in settings if not key.startswith("spark.hadoop.") and entry.findEntry(key) is None]
    assert unknown == []


def test_a_silent_node_is_given_up_within_fifteen_seconds(spark, settings):
    seconds = spark.sparkContext._jvm.org.apache.spark.network.util.JavaUtils.timeStringAsSec
    silence = seconds(settings["spark.storage.blockManagerHeartbeatTimeoutMs"])
    look = seconds(settings["spark.network.timeoutInterval"])
    assert silence + look <= 15
    assert 3 * seconds(settings["spark.executor.heartbeatInterval"]) <= silence


def test_spark_accepts_the_limits_of_exclusion_together(spark, settings):
    tracker = spark.sparkContext._jvm.org.apache.spark.scheduler.HealthTracker
    conf = spark.sparkContext._jvm.org.apache.spark.SparkConf(False)
    for key, value in settings.items():
        conf.set(key, value)
    tracker.validateExcludeOnFailureConfs(conf)


def test_files_move_when_the_driver_has_accepted_them(settings):
    assert settings["spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version"] == "1"
