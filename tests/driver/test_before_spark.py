"""Execution providers that are missing, told before Spark starts where the executors are this machine."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from sparkinfer import cli
from sparkinfer.core.errors import DeviceError
from sparkinfer.core.spec import JobSpec
from sparkinfer.driver import job, validate


@pytest.fixture
def arguments(tmp_path, monkeypatch):
    """A job whose model nobody opens."""
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(b"")
    (tmp_path / "m.onnx").write_bytes(b"")

    def refuse(*_):
        raise AssertionError("Spark was started")

    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)  # which other tests have made
    monkeypatch.setattr(job, "get_session", refuse)
    monkeypatch.setattr(validate, "get_session", refuse)
    return {
        "source": {"images": str(tmp_path / "images")},
        "model": {"path": str(tmp_path / "m.onnx"), "providers": ["openvino"]},
        "sink": {"path": str(tmp_path / "out")},
    }


@pytest.mark.parametrize("command", ["run", "validate"])
def test_both_commands_tell_it_in_one_message(arguments, tmp_path, capsys, command):
    (tmp_path / "job.json").write_text(JobSpec.model_validate(arguments).model_dump_json(exclude_unset=True))
    assert cli.main([command, str(tmp_path / "job.json")]) == 2
    problem, allowed, hint = capsys.readouterr().err.splitlines()
    assert problem.startswith("model.providers: onnxruntime ")
    assert "has no openvino" in problem
    assert allowed.split(", ")[-1] == "cpu"
    assert "onnxruntime-openvino" in hint


def test_other_machines_may_have_other_builds(arguments):
    local = JobSpec.model_validate(arguments | {"spark": {"master": "local[1]"}})
    with pytest.raises(DeviceError):
        job.check_before_spark(local, retries=False)
    job.check_before_spark(JobSpec.model_validate(arguments | {"spark": {"master": "yarn"}}), retries=False)
