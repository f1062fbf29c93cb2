"""A standalone cluster of two Workers with two simulated GPUs each: what tasks, stages and refusals make of them.

The Workers find their GPUs with the shipped script, which asks a pretended nvidia-smi. Nodes 127.0.0.2 and 127.0.0.3
have GPUs 0 and 1, and 2 and 3, of one machine, which executors see in the order 3, 2, 1, 0 (CUDA_VISIBLE_DEVICES).
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image

from sparkinfer.core.errors import SparkInferError
from sparkinfer.driver.session import find_java
from tests.chaos.standalone import Cluster

pytestmark = pytest.mark.cluster

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ENTRY = ROOT / "jobs" / "batch_infer.py"

CORES = 4
NODES = 2
ROWS = 96
COLOURS = ((255, 0, 0), (0, 255, 0), (0, 0, 255))
"""Their numbers are the classes: the pretended model names the brightest channel."""

NVIDIA_SMI = """#!/bin/sh
case $SPARK_LOCAL_IP in 127.0.0.2) gpus="0 1" ;; *) gpus="2 3" ;; esac
for gpu in $gpus; do
    case $1 in
    -L) echo "GPU $gpu: NVIDIA H200 (UUID: GPU-5e1f0c6a-0000-4000-8000-00000000000$gpu)" ;;
    *) echo "$gpu, Disabled" ;;
    esac
done
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    try:
        find_java()
    except SparkInferError as error:
        if os.environ.get("CI"):
            pytest.fail(error.render())
        pytest.skip(error.render())
    place = tmp_path_factory.mktemp("gpus")
    (place / "bin").mkdir()
    (place / "bin" / "nvidia-smi").write_text(NVIDIA_SMI)
    (place / "bin" / "nvidia-smi").chmod(0o755)
    (place / "machine" / "dev").mkdir(parents=True)
    for number in range(4):
        (place / "machine" / "dev" / f"nvidia{number}").touch()
    properties = place / "spark.conf"
    properties.write_text(
        "spark.worker.resource.gpu.amount 2\n"
        f"spark.worker.resource.gpu.discoveryScript {ROOT / 'conf' / 'gpu_discovery.sh'}\n"
    )
    variables = {
        "PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([str(HERE / "gpu_probe"), str(ROOT)]),
        "GPU_PROBE_ROOT": str(place / "machine"),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        for name, value in variables.items():
            patch.setenv(name, value)
        with Cluster(place / "cluster", properties, NODES, CORES) as running:
            yield running
            assert running.all_processes()
    assert not running.all_processes()


@dataclass(frozen=True)
class Run:
    """A job on the cluster; its files lie in `folder`."""

    cluster: Cluster
    folder: Path

    def write(self, conf: dict[str, Any], master: str | None = None) -> None:
        """The images, the model and the job file."""
        rows = []
        for number in range(ROWS):
            file = io.BytesIO()
            Image.new("RGB", (8, 8), COLOURS[number % 3]).save(file, "PNG")
            rows.append({"path": f"{number:02d}", "content": file.getvalue()})
        pq.write_table(pa.Table.from_pylist(rows), self.folder / "images.parquet")
        (self.folder / "colours.probe").write_text(json.dumps({"num_classes": 3}))
        (self.folder / "events").mkdir()
        spec = {
            "source": {"parquet": str(self.folder / "images.parquet")},
            "model": {"path": str(self.folder / "colours.probe"), "device": "cuda"},
            "preprocess": {"resize": None, "crop": [8, 8], "decoder": "gpu_probe:decode"},
            "batch": {"size": 4},
            "sharding": "hybrid",  # one file: the rows are measured, and moved, in stages without the model
            "sink": {"path": str(self.folder / "predictions")},
            "spark": {"master": master or self.cluster.url, "conf": {**self.common(), **conf}},
        }
        (self.folder / "job.yaml").write_text(yaml.safe_dump(spec))

    def common(self) -> dict[str, Any]:
        return {
            "spark.executor.cores": CORES,
            "spark.executor.memory": "512m",
            "spark.cores.max": NODES * CORES,
            "spark.scheduler.minRegisteredResourcesRatio": 1.0,  # else one executor may do it all
            "spark.executorEnv.CUDA_VISIBLE_DEVICES": "3,2,1,0",
            "spark.executorEnv.GPU_PROBE_LOG": str(self.folder / "probe.jsonl"),
            "spark.ui.enabled": False,
            "spark.eventLog.enabled": True,
            "spark.eventLog.dir": str(self.folder / "events"),
            "spark.eventLog.rolling.enabled": False,
            "spark.eventLog.compress": False,
        }

    def start(self, **submitted: str) -> tuple[int, str]:
        """Runs the job by spark-submit with these settings, or by itself.

        Returns:
            Its exit status, and what it said.
        """
        program = [sys.executable]
        if submitted:
            program = [str(Path(sys.executable).parent / "spark-submit"), "--master", self.cluster.url]
            program += [word for key, value in submitted.items() for word in ("--conf", f"{key}={value}")]
        done = subprocess.run(
            [*program, str(ENTRY), str(self.folder / "job.yaml")],
            env=self.cluster.environment(),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )
        return done.returncode, done.stdout

    def predictions(self) -> dict[str, int]:
        table = ds.dataset(self.folder / "predictions", format="parquet").to_table()
        assert table["error_message"].drop_null().to_pylist() == []
        return dict(zip(table["path"].to_pylist(), table["predicted_class_idx"].to_pylist(), strict=True))

    def probes(self, event: str) -> list[dict[str, Any]]:
        lines = map(json.loads, (self.folder / "probe.jsonl").read_text().splitlines())
        return [line for line in lines if line["event"] == event]

    def events(self, kind: str) -> list[dict[str, Any]]:
        (log,) = (self.folder / "events").iterdir()
        lines = map(json.loads, log.read_text().splitlines())
        return [line for line in lines if line["Event"] == f"SparkListener{kind}"]

    def stages(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The stages that ran the model, and the others."""
        infos = [event["Stage Info"] for event in self.events("StageCompleted")]
        model = [info for info in infos if any("MapInArrow" in rdd.get("Scope", "") for rdd in info["RDD Info"])]
        return model, [info for info in infos if info not in model]


EXPECTED = {f"{number:02d}": number % 3 for number in range(ROWS)}


def gpus_of_profiles(run: Run) -> dict[int, float]:
    """What a task asks for, by resource profile."""
    return {
        event["Resource Profile Id"]: event["Task Resource Requests"].get("gpu", {}).get("Amount", 0.0)
        for event in run.events("ResourceProfileAdded")
    }


def check_places(run: Run, threads: int) -> None:
    """One GPU a task, one executor a node, the device that CUDA counts it as, decoders on every core."""
    loads = run.probes("load")
    assert all(len(load["addresses"]) == 1 for load in loads)
    addresses = {int(load["addresses"][0]) for load in loads}
    assert sorted(address // 2 for address in addresses) == [0, 1], addresses
    assert all(load["device"] == f"cuda:{3 - int(load['addresses'][0])}" for load in loads)
    decoders = defaultdict(set)
    for line in run.probes("decode"):
        decoders[line["pid"]].add(line["thread"])
    assert {pid: len(found) for pid, found in decoders.items()} == {load["pid"]: threads for load in loads}


def test_one_gpu_a_task_and_none_for_the_stages_before_the_model(cluster, tmp_path):
    run = Run(cluster, tmp_path)
    run.write({"spark.executorEnv.GPU_PROBE_THREADS": CORES})
    status, said = run.start(**{"spark.task.resource.gpu.amount": "1", "spark.executor.resource.gpu.amount": "1"})
    assert status == 0, said
    assert run.predictions() == EXPECTED
    check_places(run, threads=CORES)
    model, others = run.stages()
    gpus = gpus_of_profiles(run)
    assert {gpus[stage["Resource Profile Id"]] for stage in model} == {1.0}
    assert len(others) >= 2  # measured and moved
    assert {gpus[stage["Resource Profile Id"]] for stage in others} == {0.0}


def test_two_tasks_share_a_gpu_and_the_cores(cluster, tmp_path):
    run = Run(cluster, tmp_path)
    amounts = {"spark.task.resource.gpu.amount": 0.5, "spark.executor.resource.gpu.amount": 1}
    run.write({**amounts, "spark.executorEnv.GPU_PROBE_THREADS": CORES // 2})
    status, said = run.start()
    assert status == 0, said
    assert run.predictions() == EXPECTED
    check_places(run, threads=CORES // 2)
    model, _ = run.stages()
    assert {gpus_of_profiles(run)[stage["Resource Profile Id"]] for stage in model} == {0.5}
    # Either executor starts a second task before its first has ended.
    stages = {stage["Stage ID"] for stage in model}
    order: dict[str, list[str]] = defaultdict(list)
    (log,) = (run.folder / "events").iterdir()
    for event in map(json.loads, log.read_text().splitlines()):
        if event["Event"] in {"SparkListenerTaskStart", "SparkListenerTaskEnd"} and event["Stage ID"] in stages:
            order[event["Task Info"]["Executor ID"]].append(event["Event"].removeprefix("SparkListenerTask"))
    assert [kinds[:2] for kinds in order.values()] == [["Start", "Start"]] * NODES


def test_more_gpus_than_a_worker_has_are_refused_before_the_job_starts(cluster, tmp_path):
    run = Run(cluster, tmp_path)
    amounts = {"spark.task.resource.gpu.amount": 1, "spark.executor.resource.gpu.amount": 3}
    run.write({**amounts, "spark.scheduler.minRegisteredResourcesRatio": 0})
    status, said = run.start()
    assert status == 2, said
    said = " ".join(said.split())
    assert f"no Worker of {cluster.url} has 3 GPUs for an executor: 127.0.0.2:" in said
    assert "allowed: at most 2" in said
    assert "Traceback" not in said
    assert run.events("StageSubmitted") == []


def test_a_local_master_has_no_gpus_to_give(cluster, tmp_path):
    run = Run(cluster, tmp_path)
    run.write({"spark.task.resource.gpu.amount": 1, "spark.executor.resource.gpu.amount": 1}, master="local[2]")
    spec = yaml.safe_load((tmp_path / "job.yaml").read_text())
    spec["model"]["device"] = "cpu"  # a missing GPU of this machine would be told first
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(spec))
    status, said = run.start()
    assert status == 2, said
    assert "spark.task.resource.gpu.amount: the master is 'local[2,4]', which has no GPUs to give" in said
    assert "hint: leave it out" in said
    assert list((tmp_path / "events").iterdir()) == []
