"""Fixtures of the Kubernetes tests: the programs built from source, and an API server that runs for all of them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.crds import pod_monitor_crd, spark_application_crd
from tests.kubernetes.manifests import FOLDER

BUILD = Path(__file__).parent / "apiserver" / "build.sh"


@pytest.fixture(scope="session")
def programs() -> Path:
    """Folder with kube-apiserver, kubectl, etcd and podmonitors.yaml."""
    done = subprocess.run([BUILD, "--no-build"], capture_output=True, text=True, check=False)
    if done.returncode:
        if os.environ.get("CI"):
            pytest.fail(done.stderr)
        pytest.skip(done.stderr)
    return Path(done.stdout.strip())


@pytest.fixture(scope="session")
def api(programs, tmp_path_factory):
    """An API server that has the operators' CRDs, the namespace and its accounts."""
    with ApiServer(programs, tmp_path_factory.mktemp("kubernetes")) as server:
        for crd in (pod_monitor_crd(programs), spark_application_crd()):
            server.define(crd)
        for name in ("namespace.yaml", "rbac.yaml"):
            server.kubectl("apply", "--filename", FOLDER / name)
        yield server
