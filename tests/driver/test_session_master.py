"""Which master a session of ours gets: a local one tries failed tasks again. No JVM."""

from __future__ import annotations

import pytest

from sparkinfer.core.spec import JobSpec
from sparkinfer.driver import session


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("local", "local[1,4]"),
        ("local[3]", "local[3,4]"),
        ("local[*]", "local[*,4]"),
        ("local[ 2 ]", "local[2,4]"),
        ("local[2,1]", "local[2,1]"),  # a number of one's own
        ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
        ("yarn", "yarn"),
    ],
)
def test_a_local_master_tries_again(named: str, expected: str) -> None:
    assert session._with_retries(named) == expected


@pytest.mark.parametrize(
    ("block", "variables", "expected"),
    [
        ({"master": "yarn"}, {}, "yarn"),
        ({"conf": {"spark.master": "local[2]"}}, {}, "local[2]"),
        ({}, {}, "local[*]"),
        ({}, {"SPARK_CONF_DIR": "/etc/spark"}, None),  # spark-defaults.conf there may name one
        ({}, {"SPARK_HOME": "/opt/spark"}, None),
        ({"master": "local"}, {"SPARK_HOME": "/opt/spark"}, "local"),
    ],
)
def test_the_master_is_the_job_files_or_sparks_default(
    monkeypatch: pytest.MonkeyPatch, block: dict[str, object], variables: dict[str, str], expected: str | None
) -> None:
    for name in session._NAME_A_MASTER:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    spec = JobSpec.model_validate(
        {"source": {"images": "i"}, "model": {"path": "m"}, "sink": {"path": "o"}, "spark": block}
    )
    assert session._master(spec) == expected
