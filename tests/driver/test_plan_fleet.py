"""Executors and tasks at once, by Spark's rules, worked out by hand."""

from __future__ import annotations

import pytest

from sparkinfer.core.errors import SpecError
from sparkinfer.driver.planning.fleet import fleet_of
from sparkinfer.driver.planning.profile import Settings
from sparkinfer.driver.planning.resource_rule import Cluster
from sparkinfer.driver.spark.masters import check_master, local_cores, manager_of

GIB = 1 << 30
GPU = {"spark.executor.resource.gpu.amount": "1", "spark.task.resource.gpu.amount": "1"}
DYNAMIC = {"spark.dynamicAllocation.enabled": "true"}


@pytest.mark.parametrize(
    ("master", "expected"),
    [
        ("local", "local"),
        ("local[*,4]", "local"),
        ("spark://h:7077", "standalone"),
        ("yarn", "yarn"),
        ("k8s://https://h:6443", "kubernetes"),
        ("local-cluster[2,1,1024]", "standalone"),
        ("", "other"),
    ],
)
def test_manager(master, expected):
    assert manager_of(master) == expected


@pytest.mark.parametrize(
    "master", ["banana", "local[abc]", "local[0]", "local[2*]", "local[-1]", "local[2", "local:2", "local-cluster[2]"]
)
def test_what_is_no_master(master):
    with pytest.raises(SpecError) as refused:
        check_master(master)
    assert refused.value.key == "spark.master"


@pytest.mark.parametrize("master", ["", "local", "local[02, 3]", "yarn", "k8s://h", "own://manager", "spark://a:1,b:1"])
def test_what_may_be_one(master):
    check_master(master)


def test_cores_of_a_local_master(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 12)
    assert [local_cores(m) for m in ("local", "local[3]", "local[*]", "local[ 5 , 4 ]", "local[*,4]")] == [
        1,
        3,
        12,
        5,
        12,
    ]


@pytest.mark.parametrize(
    ("master", "conf", "expected"),
    [  # executors, most, cores, slots, parallelism, told
        ("local[3,4]", {}, (1, 1, 3, 3, 3, True)),
        ("local[4]", {"spark.task.cpus": "2", "spark.executor.memory": "9g"}, (1, 1, 4, 2, 4, True)),
        ("yarn", {}, (2, 2, 1, 1, 2, True)),
        ("yarn", {"spark.executor.instances": "20", "spark.executor.cores": "4"}, (20, 20, 4, 4, 80, True)),
        # Cores count, and one GPU allows one task.
        ("yarn", {"spark.executor.instances": "20", "spark.executor.cores": "4", **GPU}, (20, 20, 4, 1, 80, True)),
        ("k8s://x", {"spark.executor.cores": "4", "spark.default.parallelism": "7"}, (2, 2, 4, 4, 7, True)),
        # Executors that come later are not there when the input is cut.
        ("yarn", {"spark.executor.cores": "4", **DYNAMIC}, (0, None, 4, 4, 2, False)),
        (
            "yarn",
            {"spark.executor.instances": "3", "spark.dynamicAllocation.maxExecutors": "9", **DYNAMIC},
            (3, 9, 1, 1, 3, False),
        ),
        ("spark://h:7077", {}, (None, None, None, None, 2, False)),
        ("spark://h:7077", {"spark.cores.max": "16", "spark.executor.cores": "4"}, (4, 4, 4, 4, 16, True)),
    ],
)
def test_executors_tasks_and_parallelism(master, conf, expected):
    found = fleet_of(Settings(conf), master)
    assert (found.executors, found.most, found.cores, found.slots, found.parallelism, found.told) == expected


def test_half_a_gpu_for_a_task_makes_two_slots():
    conf = {"spark.executor.cores": "4", **GPU, "spark.task.resource.gpu.amount": "0.5"}
    assert fleet_of(Settings(conf), "yarn").slots == 2


def test_a_standalone_cluster_that_is_described_tells_its_executors():
    found = fleet_of(Settings({}), "spark://h:7077", Cluster(3, 9, 32 * GIB))
    assert (found.executors, found.cores, found.total_slots, found.parallelism) == (3, 8, 24, 24)


def test_a_running_session_knows_its_parallelism():
    found = fleet_of(Settings({"spark.default.parallelism": "5"}), "local[2]", running=11)
    assert (found.parallelism, found.told) == (11, True)


def test_settings_that_leave_no_task_are_for_the_checks_to_tell():
    assert fleet_of(Settings({"spark.executor.cores": "4", "spark.task.cpus": "0"}), "yarn").slots is None
    assert fleet_of(Settings({"spark.executor.cores": "0"}), "yarn").slots is None
    assert (
        fleet_of(Settings({"spark.executor.cores": "4", **GPU, "spark.task.resource.gpu.amount": "0"}), "yarn").slots
        == 4
    )


def test_databricks_gives_gpus_by_itself():
    assert fleet_of(Settings({"spark.task.resource.gpu.amount": "0.5"}), "").gpus == 1
    assert fleet_of(Settings({}), "").gpus == 0
