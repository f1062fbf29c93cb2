"""The Databricks bundle against the schema of its resources, the files that it names, and the shipped settings."""

from __future__ import annotations

import copy
import csv
import hashlib
import io
import zipfile
from base64 import urlsafe_b64encode
from email import message_from_bytes
from pathlib import Path

import pytest

from deploy.databricks.build_wheel import without_pyspark
from sparkinfer.driver.config import load_job
from tests.deploy.bundle import BundleError, check, load

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "databricks"
PROFILE = ROOT / "conf" / "spark-defaults.databricks.conf"


@pytest.fixture
def config():
    return copy.deepcopy(load(FOLDER / "databricks.yml"))


def cluster(config, job):
    (found,) = config["resources"]["jobs"][job]["job_clusters"]
    return found["new_cluster"]


def test_the_bundle_is_valid(config):
    check(config, FOLDER)
    assert sorted(config["resources"]["jobs"]) == ["sparkinfer_cpu", "sparkinfer_gpu"]


CORRUPTIONS = {
    "an unknown key of a cluster": (
        lambda c: cluster(c, "sparkinfer_gpu").update(spark_versoin="17.3"),
        "resources.jobs.sparkinfer_gpu: Unexpected field 'spark_versoin' for class ClusterSpec",
    ),
    "a missing name": (
        lambda c: c["resources"]["volumes"]["models"].pop("name"),
        "resources.volumes.models: .*missing 1 required keyword-only argument: 'name'",
    ),
    "no such mode of access": (
        lambda c: cluster(c, "sparkinfer_cpu").update(data_security_mode="SINGLE"),
        "resources.jobs.sparkinfer_cpu: 'SINGLE' is not a valid DataSecurityMode",
    ),
    "a text for a number": (
        lambda c: cluster(c, "sparkinfer_gpu")["autoscale"].update(max_workers="many"),
        "resources.jobs.sparkinfer_gpu: invalid literal for int.*'many'",
    ),
    "an unknown key of the bundle": (lambda c: c.update(artefacts={}), "artefacts: Extra inputs are not permitted"),
    "an unknown mode": (lambda c: c["targets"]["dev"].update(mode="develop"), "targets.dev.mode: .*'development'"),
    "an unknown variable": (
        lambda c: c["variables"].pop("gpu_node"),
        r"\$\{var.gpu_node\} is not defined",
    ),
    "an unknown parameter": (
        lambda c: c["resources"]["jobs"]["sparkinfer_gpu"]["parameters"].pop(),
        "sparkinfer_gpu.tasks.predict: no parameter 'table'",
    ),
    "a cluster that is not there": (
        lambda c: c["resources"]["jobs"]["sparkinfer_gpu"]["tasks"][0].update(job_cluster_key="tpu"),
        "tasks.predict.job_cluster_key: no cluster 'tpu'",
    ),
    "an entry point that stays behind": (
        lambda c: c["sync"]["paths"].remove("../../jobs"),
        "python_file: .*batch_infer.py is not there, or sync leaves it behind",
    ),
    "a wheel that nobody builds": (
        lambda c: c.update(artifacts={}),
        "libraries: nothing builds ../../build/databricks/",
    ),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corrupted_bundle_is_refused(config, name):
    corrupt, words = CORRUPTIONS[name]
    corrupt(config)
    with pytest.raises(BundleError, match=words):
        check(config, FOLDER)


def test_the_clusters_have_the_shipped_settings(config):
    lines = (line.split(None, 1) for line in PROFILE.read_text().splitlines() if line and not line.startswith("#"))
    shipped = {key: value.strip() for key, value in lines}
    assert cluster(config, "sparkinfer_gpu")["spark_conf"] == shipped
    others = {"spark.task.resource.gpu.amount", "spark.executor.memory", "spark.default.parallelism"}
    on_cpus = cluster(config, "sparkinfer_cpu")["spark_conf"]
    assert {key: on_cpus[key] for key in on_cpus if key not in others} == {
        key: shipped[key] for key in shipped if key not in others
    }
    assert "spark.task.resource.gpu.amount" not in on_cpus


def test_nothing_is_installed_by_an_init_script(config):
    assert "init_scripts" not in str(config)
    for job in config["resources"]["jobs"].values():
        assert {"whl": "../../build/databricks/*.whl"} in job["tasks"][0]["libraries"]


def test_the_job_file_is_right_with_what_the_job_sets(config):
    arguments = config["resources"]["jobs"]["sparkinfer_gpu"]["tasks"][0]["spark_python_task"]["parameters"]
    assert arguments[0] == "${workspace.file_path}/deploy/databricks/job.yaml"
    values = {"images": "/Volumes/c/s/photos", "model": "/Volumes/c/s/models/m.onnx", "table": "c.s.predictions"}
    sets = [argument for argument in arguments[1:] if argument != "--set"]
    for name, value in values.items():
        sets = [text.replace(f"{{{{job.parameters.{name}}}}}", value) for text in sets]
    spec = load_job(str(FOLDER / "job.yaml"), sets)
    assert spec.source.images == values["images"]
    assert spec.model.path == values["model"]
    assert spec.sink.table == values["table"]


def test_the_wheel_asks_for_no_pyspark_and_is_else_the_same(tmp_path):
    metadata = (
        b"Metadata-Version: 2.4\nName: sparkinfer\nRequires-Dist: numpy\nRequires-Dist: pyspark<5,>=3.5\n\ntext\n"
    )
    record = "sparkinfer/__init__.py,sha256=x,3\nsparkinfer-1.dist-info/METADATA,sha256=y,1\n"
    record += "sparkinfer-1.dist-info/RECORD,,\n"
    with zipfile.ZipFile(tmp_path / "old.whl", "w") as wheel:
        wheel.writestr("sparkinfer/__init__.py", "abc")
        wheel.writestr("sparkinfer-1.dist-info/METADATA", metadata)
        wheel.writestr("sparkinfer-1.dist-info/RECORD", record)
    with zipfile.ZipFile(without_pyspark(tmp_path / "old.whl", tmp_path / "new.whl")) as wheel:
        assert wheel.read("sparkinfer/__init__.py") == b"abc"
        told = wheel.read("sparkinfer-1.dist-info/METADATA")
        assert message_from_bytes(told).get_all("Requires-Dist") == ["numpy"]
        rows = list(csv.reader(io.StringIO(wheel.read("sparkinfer-1.dist-info/RECORD").decode())))
    digest = urlsafe_b64encode(hashlib.sha256(told).digest()).rstrip(b"=").decode()
    assert rows == [
        ["sparkinfer/__init__.py", "sha256=x", "3"],
        ["sparkinfer-1.dist-info/METADATA", f"sha256={digest}", str(len(told))],
        ["sparkinfer-1.dist-info/RECORD", "", ""],
    ]
