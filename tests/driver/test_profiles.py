"""The settings that are shipped: Spark knows every key and takes every value, each says why, and no two contradict."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparkinfer.driver.listing import JAVA_ERRORS, java_reason
from sparkinfer.driver.planning.profile import parse_properties, read_profile

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "conf").glob("spark-defaults*.conf"))
NAMES = [file.name.removeprefix("spark-defaults.").removesuffix(".conf") for file in FILES]

DECLARED_BY = (
    "org.apache.spark.internal.config.package$",
    "org.apache.spark.internal.config.Kryo$",
    "org.apache.spark.internal.config.Python$",
    "org.apache.spark.internal.config.UI$",
    "org.apache.spark.internal.config.Network$",
    "org.apache.spark.internal.config.Worker$",
    "org.apache.spark.deploy.yarn.config.package$",
    "org.apache.spark.deploy.k8s.Config$",
    "org.apache.spark.sql.internal.SQLConf$",
    "org.apache.spark.sql.internal.StaticSQLConf$",
)
"""Scala objects that register Spark's settings when they are loaded."""

UNREGISTERED = {
    "spark.master": "read by name (SparkConf, SparkSubmit)",
    "spark.executor.resource.gpu.amount": "made of the resource's name: ResourceID.amountConf",
    "spark.executor.resource.gpu.discoveryScript": "made of the resource's name: ResourceID.discoveryScriptConf",
    "spark.executor.resource.gpu.vendor": "made of the resource's name: ResourceID.vendorConf",
    "spark.task.resource.gpu.amount": "made of the resource's name: ResourceID.amountConf",
    "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version": "handed to Hadoop",
    "spark.hadoop.dfs.client.read.shortcircuit": "handed to Hadoop",
    "spark.hadoop.dfs.domain.socket.path": "handed to Hadoop",
    "spark.hadoop.dfs.client.retry.policy.enabled": "handed to Hadoop",
    "spark.hadoop.dfs.client.retry.policy.spec": "handed to Hadoop",
    "spark.hadoop.dfs.client.max.block.acquire.failures": "handed to Hadoop",
    "spark.hadoop.dfs.client.retry.window.base": "handed to Hadoop",
    "spark.hadoop.fs.s3a.retry.limit": "handed to Hadoop",
}
"""Settings that no object registers, and who reads them."""

OF_THE_PLATFORM = {
    "spark.executor.memory",  # by the machines that it was written for
    "spark.default.parallelism",
}
"""Settings that may differ between profiles."""


def settings_of(name):
    return read_profile(str(ROOT / "conf" / f"spark-defaults.{name}.conf"))


def test_all_profiles_are_there():
    assert {"local", "cluster", "yarn-gpu", "kubernetes-gpu", "databricks"} <= set(NAMES)


@pytest.mark.parametrize("file", FILES, ids=NAMES)
def test_every_setting_stands_once_below_its_reason(file):
    lines = file.read_text().splitlines()
    keys = [line.split()[0] for line in lines if line and not line.startswith("#")]
    assert len(keys) == len(set(keys)) == len(parse_properties(file.read_text()))
    for before, line in zip(["", *lines], lines, strict=False):
        if line and not line.startswith("#"):
            assert re.match(r"# [^-]", before), f"no reason above {line!r}"
        else:
            assert len(line) <= 120, line


@pytest.mark.parametrize("name", [name for name in NAMES if name not in {"cluster", "local"}])
def test_profiles_repeat_what_the_common_one_explains(name):
    common, own = settings_of("cluster"), settings_of(name)
    different = {key for key in common.keys() & own.keys() if common[key] != own[key]}
    assert different <= OF_THE_PLATFORM
    if name != "databricks":  # which owns executors and commits
        # Standalone's own, and what only matters once speculation is turned on.
        left_out = {"spark.worker.timeout", "spark.yarn.am.attemptFailuresValidityInterval"}
        assert common.keys() - own.keys() - left_out == {
            "spark.speculation.multiplier",
            "spark.speculation.quantile",
            "spark.speculation.minTaskRuntime",
        }


@pytest.mark.parametrize("name", ["yarn-gpu", "kubernetes-gpu"])
def test_gpu_profiles_start_from_the_agreed_figures(name):
    expected = {
        "spark.executor.instances": "20",
        "spark.executor.cores": "4",
        "spark.executor.memory": "12g",
        "spark.serializer": "org.apache.spark.serializer.KryoSerializer",
        "spark.kryoserializer.buffer.max": "512m",
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.decommission.enabled": "true",
        "spark.executor.resource.gpu.amount": "1",
        "spark.task.maxFailures": "8",
    }
    found = settings_of(name)
    assert {key: found[key] for key in expected} == expected
    assert "-XX:+UseG1GC" in found["spark.executor.extraJavaOptions"]
    assert int(found["spark.default.parallelism"]) == int(found["spark.executor.instances"])  # one task for each GPU


def test_files_that_profiles_name_are_in_the_checkout():
    yarn, kubernetes = settings_of("yarn-gpu"), settings_of("kubernetes-gpu")
    script = yarn["spark.yarn.dist.files"]
    assert (ROOT / script).is_file()
    assert yarn["spark.executor.resource.gpu.discoveryScript"] == f"./{Path(script).name}"
    in_image = kubernetes["spark.executor.resource.gpu.discoveryScript"]
    assert in_image == f"/opt/sparkinfer/{script}"
    for who in ("driver", "executor"):
        assert (ROOT / kubernetes[f"spark.kubernetes.{who}.podTemplateFile"]).is_file()


def problems(spark, settings):
    """Keys that Spark does not know and values that it does not take, in words."""
    jvm = spark.sparkContext._jvm
    for name in DECLARED_BY:
        jvm.java.lang.Class.forName(name)
    found = []
    for key, value in settings.items():
        entry = jvm.org.apache.spark.internal.config.ConfigEntry.findEntry(key)
        if entry is None:
            if key not in UNREGISTERED:
                found.append(f"{key}: Spark knows no such setting")
            continue
        try:
            entry.valueConverter().apply(value)
        except JAVA_ERRORS as error:
            found.append(f"{key}: {value!r} is no value: {java_reason(error)}")
    return found


@pytest.mark.spark
@pytest.mark.parametrize("name", NAMES)
def test_spark_knows_every_key_and_takes_every_value(spark, name):
    assert problems(spark, settings_of(name)) == []


@pytest.mark.spark
def test_a_damaged_profile_is_found_out(spark):
    text = (ROOT / "conf" / "spark-defaults.yarn-gpu.conf").read_text()
    for right, wrong in {
        "spark.executor.memory  ": "spark.executor.memroy  ",
        "512m": "512q",
        "spark.task.maxFailures                           8": "spark.task.maxFailures  eight",
        "shuffleTracking.timeout  10min": "shuffleTracking.timeout  10fortnights",
        "spark.decommission.enabled                       true": "spark.decommission.enabled  yes",
    }.items():
        assert right in text
        text = text.replace(right, wrong, 1)
    found = problems(spark, parse_properties(text))
    assert [line.split(":")[0] for line in found] == [
        "spark.executor.memroy",
        "spark.kryoserializer.buffer.max",
        "spark.dynamicAllocation.shuffleTracking.timeout",
        "spark.decommission.enabled",
        "spark.task.maxFailures",
    ]


@pytest.mark.spark
def test_settings_that_spark_does_not_register_are_those_it_reads(spark):
    jvm = spark.sparkContext._jvm
    ids = jvm.org.apache.spark.resource
    executor, task = (ids.ResourceID(f"spark.{who}", "gpu") for who in ("executor", "task"))
    gpu = {executor.amountConf(), executor.discoveryScriptConf(), executor.vendorConf(), task.amountConf()}
    hadoop = {
        jvm.java.lang.Class.forName(f"org.apache.hadoop.{name}").getField(field).get(None)
        for name, field in (
            ("mapreduce.lib.output.FileOutputCommitter", "FILEOUTPUTCOMMITTER_ALGORITHM_VERSION"),
            ("hdfs.client.HdfsClientConfigKeys", "DFS_DOMAIN_SOCKET_PATH_KEY"),
            ("hdfs.client.HdfsClientConfigKeys$Read$ShortCircuit", "KEY"),
            ("hdfs.client.HdfsClientConfigKeys$Retry", "POLICY_ENABLED_KEY"),
            ("hdfs.client.HdfsClientConfigKeys$Retry", "POLICY_SPEC_KEY"),
            ("hdfs.client.HdfsClientConfigKeys$Retry", "WINDOW_BASE_KEY"),
            ("hdfs.client.HdfsClientConfigKeys", "DFS_CLIENT_MAX_BLOCK_ACQUIRE_FAILURES_KEY"),
        )
    }
    hadoop.add("fs.s3a.retry.limit")  # hadoop-aws has a jar of its own
    assert gpu | {f"spark.hadoop.{key}" for key in hadoop} | {"spark.master"} == set(UNREGISTERED)


@pytest.mark.spark
@pytest.mark.parametrize("name", NAMES)
def test_java_reads_the_same_settings(spark, name, tmp_path):
    text = (
        ROOT / "conf" / f"spark-defaults.{name}.conf"
    ).read_text() + "odd\\ key = a \\\n  b\\u00e9\\t:c \nempty\n! no\n"
    path = tmp_path / "p.conf"
    path.write_text(text)
    jvm = spark.sparkContext._jvm
    properties = jvm.java.util.Properties()
    properties.load(jvm.java.io.FileReader(str(path)))
    expected = {key: properties.getProperty(key).strip() for key in properties.stringPropertyNames()}
    assert parse_properties(text) == expected
