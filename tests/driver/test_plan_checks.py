"""What does not fit: each rule met once, each way."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sparkinfer.driver.planning.checks import check
from sparkinfer.driver.planning.facts import Facts
from sparkinfer.driver.planning.fit import overhead_of
from sparkinfer.driver.planning.fleet import fleet_of
from sparkinfer.driver.planning.memory import Part
from sparkinfer.driver.planning.profile import Settings
from sparkinfer.driver.planning.resource_rule import Cluster

GIB = 1 << 30
YARN = {
    "spark.executor.instances": "10",
    "spark.executor.cores": "4",
    "spark.executor.memory": "12g",
    "spark.executor.memoryOverhead": "6g",
    "spark.driver.memory": "4g",
}
GPU = {
    "spark.executor.resource.gpu.amount": "1",
    "spark.task.resource.gpu.amount": "1",
    "spark.executor.resource.gpu.discoveryScript": "./gpu_discovery.sh",
}


def facts(conf, master="yarn", cluster=None, **changes):
    """Needs 1 GiB of heap; 1 GiB beside it in any case, 5 GiB at most. 120 tasks of 10,000 rows."""
    settings = Settings({**YARN, **conf})
    found = Facts(
        settings=settings,
        master=master,
        fleet=fleet_of(settings, master, cluster),
        device="auto",
        on_gpu=False,
        spark_version="4.3.0",
        heap=Part("JVM heap", GIB, ""),
        beside=[Part("a", GIB, "", certain=True), Part("b", 4 * GIB, "")],
        partitions=120,
        rows=10_000,
        cluster=cluster,
        machine=64 * GIB,
        submitted=True,
        local={},
    )
    return replace(found, **changes)


def found(*args, **kwargs):
    return {(finding.level, finding.setting) for finding in check(facts(*args, **kwargs))}


def test_a_profile_that_fits():
    assert found({}) == set()
    assert found(GPU) == set()
    assert found({}, "spark://h:7077") == set()


@pytest.mark.parametrize(
    ("conf", "expected"),
    [
        ({"spark.task.cpus": "5"}, ("error", "spark.task.cpus")),
        ({"spark.task.cpus": "0"}, ("error", "spark.task.cpus")),
        ({"spark.kryoserializer.buffer.max": "2g"}, ("error", "spark.kryoserializer.buffer.max")),
        ({"spark.kryoserializer.buffer": "128m"}, ("error", "spark.kryoserializer.buffer.max")),
        ({"spark.executor.memory": "400m"}, ("error", "spark.executor.memory")),
        ({"spark.executor.memory": "900m"}, ("warning", "spark.executor.memory")),
        ({"spark.executor.memoryOverhead": "4g"}, ("warning", "spark.executor.memoryOverhead")),
        ({"spark.executor.memoryOverhead": "1023m"}, ("error", "spark.executor.memoryOverhead")),
        ({"spark.task.maxFailures": "1"}, ("warning", "spark.task.maxFailures")),
        (
            {"spark.excludeOnFailure.enabled": "true", "spark.excludeOnFailure.task.maxTaskAttemptsPerNode": "4"},
            ("error", "spark.excludeOnFailure.task.maxTaskAttemptsPerNode"),
        ),
        ({"log4j.level": "INFO"}, ("warning", "log4j.level")),
        ({"spark.driver.memory": "521m"}, ("warning", "spark.driver.memory")),
        ({"spark.executor.pyspark.memory": "2g"}, ("warning", "spark.executor.pyspark.memory")),
        # GPUs: what `gpu_requests` refuses.
        ({**GPU, "spark.task.resource.gpu.amount": "2"}, ("error", "spark.task.resource.gpu.amount")),
        ({"spark.task.resource.gpu.amount": "1"}, ("error", "spark.executor.resource.gpu.amount")),
        (
            {**GPU, "spark.executor.resource.gpu.discoveryScript": ""},
            ("error", "spark.executor.resource.gpu.discoveryScript"),
        ),
    ],
)
def test_one_thing_that_does_not_fit(conf, expected):
    assert found(conf) == {expected}


def test_dynamic_allocation_must_not_lose_shuffled_data():
    dynamic = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.maxExecutors": "10",
        "spark.default.parallelism": "40",
    }
    assert found(dynamic) == set()
    tracking = "spark.dynamicAllocation.shuffleTracking.enabled"
    assert found({**dynamic, tracking: "false"}) == {("error", tracking)}
    assert found({**dynamic, tracking: "false", "spark.decommission.enabled": "true"}) == set()
    assert found({**dynamic, tracking: "false", "spark.shuffle.service.enabled": "true"}) == set()
    fewest = {**dynamic, "spark.dynamicAllocation.minExecutors": "11"}
    assert found(fewest) == {("error", "spark.dynamicAllocation.maxExecutors")}
    unset = {key: value for key, value in dynamic.items() if key != "spark.default.parallelism"}
    assert found(unset) == {("warning", "spark.default.parallelism")}


def test_an_address_space_limit_leaves_cuda_none():
    assert found({**GPU, "spark.executor.pyspark.memory": "8g"}, on_gpu=True) == {
        ("error", "spark.executor.pyspark.memory")
    }


def test_a_running_session_has_been_checked_before():
    running = {**GPU, "spark.sparkinfer.model.gpus": "1", "spark.task.resource.gpu.amount": "0"}
    assert found(running) == set()


def test_databricks_gives_executors_their_gpus():
    conf = {"spark.task.resource.gpu.amount": "1", "spark.default.parallelism": "10"}
    assert found(conf, "") == set()
    assert found(conf, "yarn") == {("error", "spark.executor.resource.gpu.amount")}


def test_a_gpu_that_nothing_asks_for():
    assert found({}, device="cuda") == {("error", "model.device")}
    assert found({}, device="cuda", cluster=Cluster(9, 16, 64 * GIB)) == {("error", "model.device")}


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        (Cluster(3, 16, 80 * GIB, 4), set()),  # four executors of 18 GiB and 4 cores on each
        (Cluster(2, 16, 80 * GIB, 4), {("warning", "spark.executor.instances")}),
        (Cluster(4, 16, 80 * GIB, 2), {("warning", "spark.executor.instances")}),
        (Cluster(10, 16, 18 * GIB, 4), {("error", "spark.executor.memory")}),
        (Cluster(10, 2, 80 * GIB, 4), {("error", "spark.executor.cores")}),
        (Cluster(10, 16, 80 * GIB), {("error", "spark.executor.resource.gpu.amount")}),
    ],
)
def test_a_profile_against_a_cluster(cluster, expected):
    assert found({**GPU, "spark.default.parallelism": "10"}, cluster=cluster) == expected


def test_what_an_executor_needs_beside_its_heap_counts_on_a_standalone_node():
    nodes = Cluster(10, 16, 17 * GIB)  # 12 of heap and 5 beside it, but 1 is the system's
    assert ("error", "spark.executor.memory") in found({}, "spark://h:7077", cluster=nodes)
    assert found({}, "spark://h:7077", cluster=replace(nodes, memory=18 * GIB)) == set()


@pytest.mark.parametrize(
    ("partitions", "rows", "expected"),
    [
        (40, 10_000, set()),
        (39, 10_000, {("warning", "spark.default.parallelism")}),
        (20, 20, {("warning", "source, spark.default.parallelism")}),
        (44, 10_000, set()),
        (60, 10_000, set()),
        (None, None, set()),
    ],
)
def test_tasks_against_tasks_at_once(partitions, rows, expected):
    assert found({}, partitions=partitions, rows=rows) == expected


def test_tasks_that_are_cut_for_other_cores_than_there_are():
    cut = {"spark.default.parallelism": "44"}
    assert found(cut, partitions=44) == {("warning", "spark.default.parallelism")}  # the second round: 4 tasks for 40
    assert found(cut, partitions=72) == set()


def test_a_local_master_has_the_machine():
    conf = {"spark.driver.memory": "4g"}
    settings = Settings(conf)
    here = {"settings": settings, "fleet": fleet_of(settings, "local[4,4]"), "master": "local[4,4]"}
    assert found({}, **here, machine=16 * GIB) == set()
    assert found({}, **here, machine=8 * GIB) == {("warning", "spark.master")}
    assert found({}, **here, machine=4 * GIB) == {("error", "spark.master")}
    assert found({}, **{**here, "master": "local[4]"}) == {("warning", "spark.master")}
    ignored = {**here, "settings": Settings({**conf, "spark.executor.memory": "9g"})}
    assert found({}, **ignored) == {("warning", "spark.executor.memory")}


def test_errors_come_first():
    levels = [finding.level for finding in check(facts({"spark.task.maxFailures": "1", "spark.task.cpus": "9"}))]
    assert levels == ["error", "warning"]


@pytest.mark.parametrize(
    ("conf", "manager", "expected"),
    [
        ({}, "yarn", 384 << 20),
        ({}, "kubernetes", 2 * GIB * 4 // 10),
        ({"spark.executor.memoryOverheadFactor": "0.5"}, "yarn", GIB),
        ({"spark.kubernetes.memoryOverheadFactor": "0.5"}, "kubernetes", GIB),
        ({"spark.executor.minMemoryOverhead": "3g"}, "yarn", 3 * GIB),
        ({"spark.executor.memoryOverhead": "700"}, "yarn", 700 << 20),
    ],
)
def test_overhead_by_spark_s_rule(conf, manager, expected):
    assert overhead_of(Settings(conf), manager, 2 * GIB) == pytest.approx(expected, abs=1)


LOCAL = {"source.images": "/data/photos", "model.path": "/data/m.onnx", "sink.path": "file:///data/out"}
SHARED = {("warning", "source.images"), ("warning", "sink.path")}


@pytest.mark.parametrize("master", ["yarn", "spark://h:7077", "k8s://https://h:6443"])
def test_a_path_on_this_machine_is_none_on_a_cluster(master):
    assert found({}, master, local=LOCAL) >= SHARED
    assert ("warning", "model.path") not in found({}, master, local=LOCAL)  # the driver hands it out


def test_a_driver_on_the_cluster_does_not_find_this_machines_model():
    moved = {"spark.submit.deployMode": "cluster"}
    assert found(moved, local=LOCAL) == {*SHARED, ("warning", "model.path")}


def test_a_default_file_system_takes_paths_without_a_scheme():
    assert found({"spark.hadoop.fs.defaultFS": "hdfs://nn"}, local=LOCAL) == {("warning", "sink.path")}


@pytest.mark.parametrize("master", ["local[2,4]", "local-cluster[2,1,1024]", ""])
def test_elsewhere_it_is_right(master):
    assert not {setting for _, setting in found({}, master, local=LOCAL)} & set(LOCAL)
