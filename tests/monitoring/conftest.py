"""What the monitoring tests need from outside: Prometheus, promtool and the Pushgateway."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.monitoring.servers import FOLDER


@pytest.fixture(scope="session")
def monitoring() -> Path:
    """The folder deploy/monitoring, on a machine that has Prometheus and its tools; CI installs them."""
    in_ci = bool(os.environ.get("CI"))
    command = [FOLDER / "install.sh", *([] if in_ci else ["--no-install"])]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        message = f"{answer.stderr.strip()}; deploy/monitoring/install.sh does it"
        if in_ci:
            pytest.fail(message)
        pytest.skip(message)
    return FOLDER
