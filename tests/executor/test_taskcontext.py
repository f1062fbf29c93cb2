from __future__ import annotations

import subprocess
import sys

import pytest
from pyspark import SparkFiles, TaskContext
from pyspark.resource import ResourceInformation

from sparkinfer.executor import taskcontext


@pytest.fixture
def task():
    def start(**facts):
        TaskContext._setTaskContext(TaskContext(**facts))

    yield start
    TaskContext._setTaskContext(None)


def test_inside_a_task(task):
    gpus = {"gpu": ResourceInformation("gpu", ["3", "GPU-a"]), "fpga": ResourceInformation("fpga", ["f"])}
    task(partitionId=7, attemptNumber=2, cpus=4, resources=gpus)
    assert taskcontext.gpu_addresses() == ("3", "GPU-a")
    assert (taskcontext.partition_id(), taskcontext.attempt_number(), taskcontext.cpus()) == (7, 2, 4)


def test_inside_a_task_without_gpus(task):
    task(partitionId=0, attemptNumber=0, cpus=1, resources={})
    assert taskcontext.gpu_addresses() == ()


def test_outside_a_task_all_is_neutral():
    assert taskcontext.gpu_addresses() == ()
    assert (taskcontext.partition_id(), taskcontext.attempt_number(), taskcontext.cpus()) == (0, 0, 1)


def test_outside_spark_nothing_is_imported():
    code = """if True:
        import sys
        from sparkinfer.executor import taskcontext
        print(taskcontext.gpu_addresses(), taskcontext.cpus(), "pyspark" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "() 1 False\n"


def test_a_file_that_spark_shipped(monkeypatch, tmp_path):
    monkeypatch.setattr(SparkFiles, "_root_directory", str(tmp_path))
    monkeypatch.setattr(SparkFiles, "_is_running_on_worker", True)
    assert taskcontext.spark_file("m.onnx") == tmp_path / "m.onnx"
