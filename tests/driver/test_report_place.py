"""A report may not lie where readers of the output would take it for data."""

from __future__ import annotations

import pytest

from sparkinfer.core.errors import SpecError
from sparkinfer.core.spec import JobSpec
from sparkinfer.driver.sinks.checks import check_apart


def job(tmp_path, report):
    return JobSpec.model_validate(
        {
            "source": {"images": str(tmp_path / "in")},
            "model": {"path": "m.onnx"},
            "sink": {"path": str(tmp_path / "out")},
            "report": str(tmp_path / report),
        }
    )


@pytest.mark.parametrize("report", ["out", "out/report", "out/../out"])
def test_inside_the_output_is_refused(tmp_path, report):
    with pytest.raises(SpecError, match="taken for data of the output") as error:
        check_apart(None, job(tmp_path, report))
    assert error.value.key == "report"


@pytest.mark.parametrize("report", ["report", "out-report", "out/_report", "."])
def test_beside_it_or_hidden_is_fine(tmp_path, report):
    check_apart(None, job(tmp_path, report))
