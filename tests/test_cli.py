"""The `sparkinfer` command: arguments, exit statuses, and what a person reads."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from sparkinfer import cli
from sparkinfer.core.errors import BudgetExceededError, JobFailedError, ModelError, SinkError
from sparkinfer.core.model_spec import Artifact, ModelSpec, Signature, TensorInfo

ROOT = Path(__file__).parents[1]
RUN = ["run", "--images", "photos", "--model", "m.onnx", "--output", "out"]


@pytest.fixture
def jobs(monkeypatch):
    """Stands in for the driver: collects the specs that would have run; set `.error` to make them fail."""
    driver = types.ModuleType("sparkinfer.driver.job")
    collected = types.SimpleNamespace(specs=[], consoles=[], error=None)

    def run_job(spec, console, _stop, *, retry_codes=None):
        collected.specs.append(spec)
        collected.consoles.append(console)
        if collected.error is not None:
            raise collected.error

    driver.run_job = run_job  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sparkinfer.driver.job", driver)
    return collected


@pytest.fixture(autouse=True)
def private_temp(monkeypatch, tmp_path):
    """Where traces of failures go."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


class TestArguments:
    def test_every_flag_reaches_its_key(self, jobs):
        flags = (
            "--images a --images b --model m.pth --output o --labels l.txt --arch resnet50 --batch-size 8 "
            "--preprocess imagenet-inception --engine pandas --master local[2] --mode append --limit 5 "
            "--keep label --keep split --report r"
        )
        assert cli.main(["run", *flags.split()]) == 0
        assert jobs.specs[0].describe() == {
            "source": {"images": ["a", "b"], "keep": ["label", "split"], "limit": 5},
            "model": {"path": "m.pth", "arch": "resnet50", "labels": "l.txt"},
            "preprocess": {
                "preset": "imagenet-inception",
                "resize": 342,
                "crop": 299,
                "interpolation": "bicubic",
                "mean": [0.5, 0.5, 0.5],
                "std": [0.5, 0.5, 0.5],
            },
            "batch": {"size": 8},
            "engine": "pandas",
            "sink": {"path": "o", "mode": "append"},
            "report": "r",
            "spark": {"master": "local[2]"},
        }

    def test_a_job_file_with_changes(self, jobs, tmp_path):
        file = tmp_path / "job.yaml"
        file.write_text("source: {images: a}\nmodel: {path: m.onnx}\nsink: {path: out}\n")
        assert cli.main(["run", str(file), "--set", "model.version=3", "--batch-size", "auto", "--parquet", "p"]) == 0
        spec = jobs.specs[0]
        assert (spec.model.version, spec.batch.size, spec.source.kind) == ("3", "auto", "parquet")

    def test_paths_that_the_shell_spread_out_are_all_taken(self, jobs, tmp_path):
        file = tmp_path / "job.yml"
        file.write_text("model: {path: m.onnx}\nsink: {path: out}\n")
        assert cli.main(["run", "--images", "a.jpg", "b c.jpg", "d.jpg", str(file)]) == 0
        assert jobs.specs[0].source.images == ("a.jpg", "b c.jpg", "d.jpg")

    def test_a_job_file_may_have_any_name(self, jobs, tmp_path):
        file = tmp_path / "photos.job"
        file.write_text("source: {images: a}\nmodel: {path: m.onnx}\nsink: {path: out}\n")
        assert cli.main(["run", str(file)]) == 0
        assert len(jobs.specs) == 1

    @pytest.mark.parametrize(
        ("arguments", "expected"),
        [
            (["run"], "nothing to run"),
            (["run", "a.yaml", "b.yaml"], "one job at a time; found a.yaml and b.yaml"),
            (["run", "job", "more"], "unexpected argument more"),
            (["run", "--images", "a", "--parquet", "b", "c"], "unexpected argument c"),
            (["run", "none.yaml"], "there is no job file none.yaml"),
            ([*RUN, "--engine", "arow"], "did you mean arrow?"),
            ([*RUN, "--batch-size", "many"], "batch.size: must be a whole number or auto, got 'many'"),
            ([*RUN, "--set", "model.versoin=3"], "did you mean model.version?"),
            ([*RUN, "--limit", "ten"], "--limit"),
            ([*RUN, "--no-such-flag"], "--no-such-flag"),
            (["rnu"], "rnu"),
        ],
    )
    def test_wrong_arguments_are_status_2(self, jobs, capsys, arguments, expected):
        assert cli.main(arguments) == 2
        output = capsys.readouterr()
        assert expected in output.err
        assert "Traceback" not in output.err
        assert not output.out
        assert not jobs.specs

    def test_quiet_is_quiet(self, jobs):
        assert cli.main([*RUN, "--quiet"]) == 0
        assert cli.main(RUN) == 0
        assert [console.quiet for console in jobs.consoles] == [True, False]

    def test_version(self, capsys):
        assert cli.main(["--version"]) == 0
        assert capsys.readouterr().out == "sparkinfer 0.1.0\n"

    @pytest.mark.parametrize(
        "arguments", [["--help"], ["run", "--help"], ["model", "--help"], ["model", "inspect", "--help"]]
    )
    def test_help(self, capsys, arguments):
        assert cli.main(arguments) == 0
        assert "Usage: sparkinfer" in capsys.readouterr().out


class TestExitStatus:
    @pytest.mark.parametrize(
        ("error", "status"),
        [
            (ModelError("no such file", key="model.path", hint="look [here]"), 2),
            (SinkError("is there", key="sink.path", allowed=["overwrite", "append"]), 2),
            (BudgetExceededError("9 of 10 rows failed", key="errors.max_fraction"), 3),
        ],
    )
    def test_a_mendable_error_is_its_message_and_nothing_else(self, jobs, capsys, error, status):
        jobs.error = error
        assert cli.main(RUN) == status
        assert capsys.readouterr().err == f"{error.render()}\n"

    @pytest.mark.parametrize("error", [JobFailedError("the job failed"), RuntimeError("boom"), ValueError()])
    def test_anything_else_is_one_line_and_the_place_of_the_trace(self, jobs, capsys, tmp_path, error):
        jobs.error = error
        assert cli.main(RUN) == 1
        first, second = capsys.readouterr().err.splitlines()
        assert first.startswith("the job failed")
        (trace,) = tmp_path.glob("sparkinfer-*.log")
        assert str(trace) in second
        assert "Traceback (most recent call last)" in trace.read_text("utf-8")
        assert trace.stat().st_mode & 0o077 == 0

    def test_debug_shows_the_trace(self, jobs, capsys, tmp_path):
        jobs.error = RuntimeError("boom")
        assert cli.main([*RUN, "--debug"]) == 1
        assert "Traceback (most recent call last)" in capsys.readouterr().err
        assert not list(tmp_path.glob("*.log"))

    def test_an_interrupt_is_130(self, jobs):
        jobs.error = KeyboardInterrupt()
        assert cli.main(RUN) == 130

    def test_a_termination_ends_in_order(self, jobs, capsys):
        jobs.error = KeyboardInterrupt("SIGTERM")  # as its handler raises it
        assert cli.main(RUN) == 143
        assert "stopped by SIGTERM" in capsys.readouterr().err


class TestModelInspect:
    @pytest.mark.parametrize(
        ("labels", "shown"),
        [(("cat", "dog"), "2: cat, dog"), (None, "none in the file"), (("a",) * 9, "9: a, a, a, a, a, ...")],
    )
    def test_shows_what_the_file_says(self, monkeypatch, capsys, labels, shown):
        scores = TensorInfo(name="scores", shape=(None, 2), dtype="float32")
        image = TensorInfo(name="image", shape=(None, 3, 224, 224), dtype="float32")
        found = types.SimpleNamespace(
            spec=ModelSpec(path="m.onnx", format="onnx"),
            digest="ab" * 32,
            artifact=Artifact(digest="ab" * 32, size=1234567, suffix=".onnx"),
            signature=Signature(input=image, scores=scores, num_classes=2),
            labels=labels,
        )
        asked: dict[str, str] = {}

        def model(path, **options):
            asked.update(options, path=path)
            return types.SimpleNamespace(inspected=found)

        module = types.ModuleType("sparkinfer.driver.model")
        module.model = model  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "sparkinfer.driver.model", module)
        assert cli.main(["model", "inspect", "m.onnx", "--arch", "resnet50"]) == 0
        assert asked == {"path": "m.onnx", "arch": "resnet50", "preprocess": None, "input": None, "output": None}
        lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
        assert lines == [
            "format onnx",
            f"digest {'ab' * 32}",
            "size 1,234,567 bytes",
            "input image: float32[?, 3, 224, 224]",
            "output scores: float32[?, 2]",
            "classes 2",
            f"labels {shown}",
        ]


JAVA = """An error occurred while calling o61.parquet.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed 4 times
\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2844)
Caused by: java.io.IOException: wrapped
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: java.net.UnknownHostException: namenode
\t... 12 more
"""
WORKER = """Job aborted due to stage failure: Lost task 0.3 (executor 1):
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1, in main
    process()
ValueError: cannot reshape

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
Caused by: java.io.EOFException
"""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError(JAVA), "java.net.UnknownHostException: namenode"),
        (RuntimeError(WORKER), "ValueError: cannot reshape"),
        (RuntimeError("first\nsecond"), "RuntimeError: first"),
        (KeyError(), "KeyError"),
        (OSError("x" * 9999), "OSError: " + "x" * 491),
    ],
)
def test_last_cause(error, expected):
    assert cli.last_cause(error) == expected


def test_last_cause_follows_pythons_own_chain():
    outer = RuntimeError("outer")
    outer.__cause__ = OSError("disk full")
    assert cli.last_cause(outer) == "OSError: disk full"


def test_the_entry_point_for_spark_submit_takes_the_same_arguments(tmp_path):
    answer = subprocess.run(
        [sys.executable, ROOT / "jobs" / "batch_infer.py", "none.yaml", "--limit", "3"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr == "there is no job file none.yaml\n"


@pytest.mark.spark
def test_spark_submit_hands_the_exit_status_on(tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text("source: {imges: a}\nmodel: {path: m.onnx}\nsink: {path: out}\n")
    submit = [f"{ROOT}/deploy/with_spark.sh", sys.prefix, "spark-submit"]
    properties = ["--properties-file", f"{ROOT}/conf/spark-defaults.local.conf"]
    answer = subprocess.run(
        [*submit, *properties, f"{ROOT}/jobs/batch_infer.py", str(job)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert answer.returncode == 2
    # spark-submit hands on both of its child's streams as stdout.
    lines = answer.stdout.splitlines()
    assert lines[0].startswith("source.imges: unknown key")
    assert len(lines) == 3
