"""The job on real HDFS and YARN daemons: input, model, job file, output, checkpoint and event log in HDFS."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import pytest
import yaml

from tests.chaos.outage import Case, Outages
from tests.cluster.yarn import DEMO, ROOT, Hadoop
from tests.images import noise

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

PATIENT = {"spark.locality.wait": "10min", "spark.scheduler.maxRegisteredResourcesWaitingTime": "10min"}
"""Tasks wait for both executors, and then for the one near their blocks, however slow this machine is."""

COMPARED = ["predicted_class_idx", "label", "confidence", "top_k", "error_code"]


def job(**blocks: Any) -> dict[str, Any]:
    """A job file: everything in HDFS, by paths without a scheme, which mean HDFS where it is the default."""
    return {
        "name": "yarn-test",
        "model": {"path": "/efficientnet_lite0.onnx", "labels": "hdfs:///labels.txt"},
        "preprocess": "imagenet",
        **blocks,
    }


def put(hadoop: Hadoop, tmp_path: Path, name: str, content: dict[str, Any]) -> str:
    """Puts a job file into HDFS."""
    file = tmp_path / name
    file.write_text(yaml.safe_dump(content))
    hadoop.dfs("-put", file, "/jobs")
    return f"hdfs:///jobs/{name}"


@pytest.fixture(scope="module")
def local(photos, tmp_path_factory) -> dict[str, dict[str, Any]]:
    """The same files and model on this machine, without YARN."""
    out = tmp_path_factory.mktemp("local") / "out"
    command = [ROOT / "jobs" / "batch_infer.py", "--images", photos / "images", "--output", out, "--master", "local[2]"]
    command += ["--model", DEMO / "efficientnet_lite0.onnx", "--labels", DEMO / "labels.txt", "--quiet"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    subprocess.run([sys.executable, *map(str, command)], check=True, env=environment)
    return by_name(out)


def table(hadoop: Hadoop, tmp_path: Path, folder: str) -> dict[str, dict[str, Any]]:
    """A prediction table out of HDFS."""
    hadoop.dfs("-get", folder, tmp_path / "copy")
    return by_name(tmp_path / "copy")


def by_name(folder: Path) -> dict[str, dict[str, Any]]:
    """Rows of a prediction table by the last part of their path."""
    rows = pq.read_table(folder, partitioning=None).to_pylist()
    found = {row["path"].rsplit("/", 1)[-1]: row for row in rows}
    assert len(found) == len(rows)
    return found


def pick(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """What must be the same wherever a row was predicted."""
    return {name: {column: row[column] for column in COMPARED} for name, row in rows.items()}


def scans(events: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """Finished tasks by stage, of the stages that run the model: those whose RDD chain has a Python stage in it."""
    wanted = {
        event["Stage Info"]["Stage ID"]
        for event in events
        if event["Event"] == "SparkListenerStageSubmitted"
        and any("InArrow" in rdd["Scope"] or "MapInBatch" in rdd["Name"] for rdd in _rdds(event))
    }
    ended: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["Event"] == "SparkListenerTaskEnd" and event["Stage ID"] in wanted:
            ended[event["Stage ID"]].append(event["Task Info"])
    return ended


def _rdds(event: dict[str, Any]) -> list[dict[str, str]]:
    return [{"Name": rdd["Name"], "Scope": rdd.get("Scope", "")} for rdd in event["Stage Info"]["RDD Info"]]


def test_cluster_mode_runs_tasks_where_their_blocks_are(hadoop, local, tmp_path):
    file = put(hadoop, tmp_path, "cluster.yaml", job(source={"parquet": "/parquet"}, sink={"path": "/out/cluster"}))
    before = hadoop.short_circuit_reads()
    run = hadoop.submit("cluster", file, conf=PATIENT)
    assert run.status == 0, run.output
    application = hadoop.application(run.application)
    assert (application["state"], application["finalStatus"]) == ("FINISHED", "SUCCEEDED")
    rows = table(hadoop, tmp_path, "/out/cluster")
    assert len(rows) == 12
    assert pick(rows) == {name: row for name, row in pick(local).items() if name.startswith("photo")}
    tasks = [task for stage in scans(hadoop.events(run.application)).values() for task in stage]
    assert tasks
    blocks = {host for part in hadoop.names("/parquet") for host in hadoop.hosts(f"/parquet/{part}")}
    assert {task["Locality"] for task in tasks} == {"NODE_LOCAL"}
    assert {task["Host"] for task in tasks} <= blocks <= set(hadoop.nodes)
    assert hadoop.short_circuit_reads() > before
    places = [f"{task['Host']} {task['Locality']}" for task in tasks]
    print(f"\n{run.application} {application['finalStatus']}: {len(rows)} rows, tasks on {', '.join(places)}")  # noqa: T201


def test_a_wrong_job_file_in_cluster_mode_ends_clearly(hadoop, tmp_path):
    wrong = job(source={"images": "/images"}, sink={"path": "/out/wrong"}, batch={"sise": 4})
    run = hadoop.submit("cluster", put(hadoop, tmp_path, "wrong.yaml", wrong))
    assert run.status == 1
    application = hadoop.application(run.application)
    assert (application["state"], application["finalStatus"]) == ("FAILED", "FAILED")
    message = "batch.sise: unknown key (hdfs:///jobs/wrong.yaml line 2)\n  allowed: size, max_bytes\n"
    for said in (application["diagnostics"], run.output):
        assert "User application exited with status 2" in said
        assert message in said
    printed = hadoop.container_logs(run.application, "stdout")
    assert message in printed
    assert "Traceback" not in printed


def test_a_missing_job_file_is_told_in_client_mode(hadoop):
    run = hadoop.submit("client", "hdfs:///jobs/none.yaml")
    assert run.status == 2
    assert "hdfs:///jobs/none.yaml" in run.output
    assert "does not exist" in run.output


def test_a_driver_in_client_mode_that_dies_goes_on_from_its_checkpoint(hadoop, local, tmp_path):
    spec = job(
        source={"images": "/images"},
        sink={"path": "/out/client"},
        resume={"checkpoint": "/out/_client", "snapshot_every": "4 files"},
    )
    file = put(hadoop, tmp_path, "client.yaml", spec)
    with hadoop.start("client", file) as first:
        for line in first.stdout:
            if "snapshot 1:" in line:
                break
        for process in [*psutil.Process(first.pid).children(recursive=True), psutil.Process(first.pid)]:
            process.send_signal(signal.SIGKILL)
    done = hadoop.names("/out/_client/done")
    assert 2 <= len(done) < 4
    assert "owner.json" in hadoop.names("/out/_client")
    run = hadoop.submit("client", file)
    assert run.status == 0, run.output
    application = hadoop.application(run.application)
    assert (application["state"], application["finalStatus"]) == ("FINISHED", "SUCCEEDED")
    assert "left out" not in run.output  # nothing was
    assert len(hadoop.names("/out/_client/done")) == 4
    assert "owner.json" not in hadoop.names("/out/_client")
    rows = table(hadoop, tmp_path, "/out/client")
    assert len(rows) == 14
    assert rows["empty.jpg"]["error_code"] == "EMPTY"
    assert rows["damaged.jpg"]["error_code"] == "TRUNCATED"
    assert rows["photo 01.jpg"]["path"] == f"{hadoop.name_node}/images/more/photo 01.jpg"
    assert pick(rows) == pick(local)


def test_no_row_suffers_when_the_name_node_is_away_for_ten_seconds(hadoop, tmp_path):
    originals = [noise((200, 150), seed) for seed in range(3)]
    outages = Outages(hadoop, None, tmp_path / "outages", originals, rows=32, latency=0.5)
    outcome = outages.run(Case("name-node", "kill", snapshot=8, at=10, seconds=10))
    assert outcome.is_right, outcome
    assert outcome.starts == 1
