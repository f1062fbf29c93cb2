"""`sparkinfer plan` from job file to exit status, without a JVM."""

from __future__ import annotations

import json
import types

import numpy as np
import pytest
from pyspark.sql import SparkSession

from sparkinfer.cli import main
from sparkinfer.core.errors import EmptySourceError
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.core.spec import JobSpec, SourceSpec
from sparkinfer.driver import plan as plan_module
from sparkinfer.driver.planning.input import Assumed, assume, cut_files, find_local
from sparkinfer.driver.splits.file_tasks import SparkSplit, file_tasks

SPLIT = SparkSplit(128 << 20, 4 << 20, 2)


@pytest.fixture(autouse=True)
def no_spark(monkeypatch):
    """Neither a session that other tests have made, nor a new one."""
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    for name in ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)

    def refuse(_spec):
        raise AssertionError("plan started Spark")

    monkeypatch.setattr(plan_module, "get_session", refuse)


@pytest.fixture
def job(tmp_path):
    """Twelve files of 1,000 to 12,000 bytes, one of which is hidden, and a model."""
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(1, 12):
        (folder / f"{number}.jpg").write_bytes(b"x" * 1000 * number)
    (folder / "_12.jpg").write_bytes(b"x" * 12_000)
    (tmp_path / "m.fake").write_text(json.dumps({"num_classes": 3}))
    path = tmp_path / "job.json"
    content = {
        "source": {"images": str(folder)},
        "model": {"path": str(tmp_path / "m.fake")},
        "sink": {"path": str(tmp_path / "out")},
        "spark": {"master": "local[3]"},
    }
    path.write_text(json.dumps(content))
    return path


def planned(capsys, *args):
    """Exit status, and the JSON."""
    status = main(["plan", *map(str, args), "--json"])
    out, err = capsys.readouterr()
    return status, json.loads(out) if out else None, err


def test_a_local_job(job, capsys):
    status, plan, err = planned(capsys, job)
    assert (status, err) == (0, "")
    cuts = plan["cuts"]
    assert (cuts["rows"], cuts["bytes"], cuts["largest"], cuts["mean_bytes"]) == (11, 66_000, 11_000, 6000)
    assert cuts["partitions"] == 3
    assert "left out: 1 hidden" in cuts["said"]
    assert plan["fleet"]["slots"] == plan["fleet"]["parallelism"] == 3
    assert plan["batch"] == 32
    settings = {setting["name"]: setting["value"] for setting in plan["settings"]}
    # 16 MiB / 6,000 bytes are 2,796 rows; the bound of 512 holds.
    assert settings["spark.sql.execution.arrow.maxRecordsPerBatch"] == "512"
    assert all(setting["reason"] for setting in plan["settings"])
    assert all(part["formula"] for part in plan["memory"])
    assert not (job.parent / "out").exists()


def test_for_a_person(job, capsys):
    assert main(["plan", str(job)]) == 0
    out = capsys.readouterr().out
    for word in ("sharding", "Memory of one executor", "beside the heap", "spark.sql.execution", "3 at once"):
        assert word in out


def test_a_batch_size_of_the_spec_is_kept(job, capsys):
    _, plan, _ = planned(capsys, job, "--set", "batch.size=7")
    assert (plan["batch"], plan["batch_reason"]) == (7, "batch.size")


@pytest.mark.parametrize(
    ("size", "model_format", "on_gpu", "expected"),
    [
        ("auto", "onnx", False, 32),
        ("auto", "torchscript", False, 8),
        (64, "torch", False, 8),
        (64, "torch", True, 64),
        (65_536, "onnx", False, (1 << 30) // (3 * 224 * 224 * 4)),
    ],
)
def test_the_batch_is_the_one_that_the_executors_take(size, model_format, on_gpu, expected):
    model = {"path": "m", "format": model_format}
    spec = JobSpec.model_validate(
        {"source": {"images": "i"}, "model": model, "sink": {"path": "o"}, "batch": {"size": size}}
    )
    found = types.SimpleNamespace(spec=spec.model, preprocess=PreprocessSpec(crop=224))
    assert plan_module._batch(spec, found, on_gpu=on_gpu)[0] == expected


def test_a_profile_that_cannot_work_ends_with_2_and_says_why(job, tmp_path, capsys):
    profile = tmp_path / "p.conf"
    profile.write_text("spark.master yarn\nspark.executor.memory 12g\nspark.executor.memoryOverhead 64m\n")
    status, plan, err = planned(capsys, job, "--set", "spark.master=yarn", "--profile", profile)
    assert status == 2
    assert plan["can_work"] is False
    assert [finding["setting"] for finding in plan["findings"] if finding["level"] == "error"] == [
        "spark.executor.memoryOverhead"
    ]
    assert "spark.executor.memoryOverhead" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("args", "key"),
    [
        (["--profile", "nowhere.conf"], "--profile"),
        (["--cluster", "big"], "--cluster"),
        (["--files", "10", "--mean-size", "large"], "--mean-size"),
        (["--files", "10", "--mean-size", "10 batches"], "--mean-size"),
        (["--set", "spark.conf.spark.executor.memory=12q", "--set", "spark.master=yarn"], "spark.executor.memory"),
        (["--set", "sorce.images=x"], "sorce"),
    ],
)
def test_wrong_arguments_end_with_2(job, capsys, args, key):
    status, _, err = planned(capsys, job, *args)
    assert status == 2
    assert key in err
    assert "Traceback" not in err


def test_for_a_cluster_the_rule_suggests_a_profile_that_fits_the_job(job, tmp_path, capsys):
    nodes = "nodes=4,cores=9,memory=64g"
    profile = tmp_path / "p.conf"
    profile.write_text("spark.master yarn\n")
    yarn = ("--set", "spark.master=yarn", "--files", 1000, "--cluster", nodes, "--profile", profile)
    _, plan, _ = planned(capsys, job, *yarn)
    suggested = {setting["name"]: setting["value"] for setting in plan["suggested"]}
    assert suggested["spark.executor.instances"] == "8"  # two of four cores on each node
    assert suggested["spark.default.parallelism"] == "32"
    profile.write_text("spark.master yarn\n" + "".join(f"{key} {value}\n" for key, value in suggested.items()))
    status, plan, _ = planned(capsys, job, *yarn, "--set", "batch.size=64")
    about_paths = {"source.images", "sink.path"}  # of this machine
    assert (status, {finding["setting"] for finding in plan["findings"]}) == (0, about_paths)


def test_a_resumable_job_is_cut_snapshot_by_snapshot(job, tmp_path, capsys):
    resume = f"resume={{checkpoint: {tmp_path}/checkpoint, snapshot_every: 4 files}}"
    _, plan, _ = planned(capsys, job, "--set", resume)
    assert (plan["cuts"]["snapshots"], plan["cuts"]["partitions"], plan["cuts"]["tasks"]) == (3, 3, 9)
    status, _, err = planned(capsys, job, "--set", resume, "--set", "source.limit=3")
    assert status == 2
    assert "source.limit" in err


def test_made_up_files_have_the_wished_number_and_size():
    found = assume(Assumed(5000, 110_000), SourceSpec(images="x"))
    lengths = found.table["length"].to_numpy()
    assert len(lengths) == 5000
    assert lengths.mean() == pytest.approx(110_000, rel=1e-3)
    assert np.log(lengths).std() == pytest.approx(0.6, rel=0.05)
    assert found.table.equals(assume(Assumed(5000, 110_000), SourceSpec(images="x")).table)


def test_a_million_files_are_cut_by_the_same_arithmetic():
    spec = JobSpec.model_validate({"source": {"images": "x"}, "model": {"path": "m"}, "sink": {"path": "o"}})
    found = assume(Assumed(1_000_000, 110_000), spec.source)
    cuts = cut_files(found, spec, 100, SPLIT)
    # 110 GB and 450 kB for each row: 560 GB of work, none above 1 GB.
    assert (cuts.rows, cuts.partitions) == (1_000_000, 560)
    assert cuts.heaviest_over_mean < 1.2
    assert cuts.reason == file_tasks(found.table["length"].to_numpy(), "auto", 100, SPLIT).reason


def test_what_only_spark_can_list(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"x")
    assert find_local(SourceSpec(images=str(tmp_path))).row_count == 1
    assert find_local(SourceSpec(images=[str(tmp_path), str(tmp_path / "a.jpg")])).left_out == {"named twice": 1}
    for other in (
        {"images": f"{tmp_path}/*.jpg"},
        {"images": "hdfs://nn/photos"},
        {"images": str(tmp_path), "where": "length > 1"},
        {"images": str(tmp_path), "sample": 0.5},
        {"parquet": str(tmp_path)},
    ):
        assert find_local(SourceSpec(**other)) is None
    (tmp_path / "empty").mkdir()
    with pytest.raises(EmptySourceError):
        find_local(SourceSpec(images=str(tmp_path / "empty")))


def test_hadoop_s_default_file_system_may_be_another_one(tmp_path, monkeypatch):
    (tmp_path / "a.jpg").write_bytes(b"x")
    monkeypatch.setenv("HADOOP_CONF_DIR", "/etc/hadoop")
    assert find_local(SourceSpec(images=str(tmp_path))) is None
    assert find_local(SourceSpec(images=f"file:{tmp_path}")).row_count == 1


def test_a_profile_for_kubernetes_needs_no_master(job, tmp_path, capsys):
    profile = tmp_path / "p.conf"
    profile.write_text(
        "spark.kubernetes.container.image x\nspark.executor.memory 2g\nspark.executor.memoryOverhead 4g\n"
    )
    status, plan, _ = planned(capsys, job, "--profile", profile)  # the job's own master is local[3]
    assert (status, plan["fleet"]["manager"], plan["fleet"]["executors"]) == (0, "kubernetes", 2)


def test_which_stages_ask_for_gpus_is_said(job, tmp_path, capsys):
    gpu = {
        "spark.master": "yarn",
        "spark.executor.memoryOverhead": "8g",
        "spark.executor.resource.gpu.amount": "1",
        "spark.task.resource.gpu.amount": "1",
        "spark.executor.resource.gpu.discoveryScript": "./gpu_discovery.sh",
    }
    profile = tmp_path / "p.conf"
    profile.write_text("".join(f"{key} {value}\n" for key, value in gpu.items()))
    _, plan, _ = planned(capsys, job, "--profile", profile)
    assert "only the stage that runs the model asks for GPUs" in plan["gpu_stages"]
    assert plan["batch"] == 1024
    assert "CUDA" in next(part["formula"] for part in plan["memory"] if part["name"] == "Python workers")
    _, plan, _ = planned(capsys, job)
    assert plan["gpu_stages"] is None
