"""A Hadoop cluster for the tests, asked as a person would: spark-submit, WebHDFS, the resource manager's REST API."""

from __future__ import annotations

import getpass
import json
import os
import re
import subprocess
import sys
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyspark

from sparkinfer.driver.session import find_java

__all__ = ["DEMO", "ROOT", "SCRIPT", "Hadoop", "Submitted"]

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "build" / "demo"
SCRIPT = ROOT / "deploy" / "cluster" / "hadoop.py"

_SPARK_HOME = Path(pyspark.__file__).parent
_APPLICATION = re.compile(r"application_\d+_\d+")


@dataclass(frozen=True)
class Submitted:
    """A spark-submit that has ended.

    Attributes:
        status: its exit status.
        output: stdout and stderr together.
    """

    status: int
    output: str

    @property
    def application(self) -> str:
        """YARN's name for it."""
        found = _APPLICATION.search(self.output)
        assert found, self.output
        return found.group()


class Hadoop:
    """A running cluster of `deploy/cluster/hadoop.py`.

    Args:
        folder: where it was started.

    Attributes:
        name_node: hdfs://address
        nodes: addresses that a data node and a node manager share.
        mark: value of the variable that every process of it carries.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        state = json.loads((folder / "cluster.json").read_text("utf-8"))
        self.name_node: str = state["name_node"]
        self.nodes: list[str] = state["nodes"]
        self.mark: str = state["mark"]
        self._name_node_http = state["name_node_http"]
        self._resource_manager_http = state["resource_manager_http"]

    # --- files -------------------------------------------------------------------------------------------------------

    def dfs(self, *arguments: str | Path) -> None:
        """`hdfs dfs`."""
        command = [sys.executable, SCRIPT, "--folder", self.folder, "dfs", *arguments]
        subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True)

    def names(self, folder: str) -> list[str]:
        """Names of a folder's entries, sorted."""
        statuses = json.loads(self._webhdfs(folder, "LISTSTATUS"))["FileStatuses"]["FileStatus"]
        return sorted(status["pathSuffix"] for status in statuses)

    def read(self, path: str) -> bytes:
        """A file's content."""
        return self._webhdfs(path, "OPEN")

    def hosts(self, path: str) -> set[str]:
        """Nodes that hold a block of a file."""
        blocks = json.loads(self._webhdfs(path, "GETFILEBLOCKLOCATIONS"))["BlockLocations"]["BlockLocation"]
        return {host for block in blocks for host in block["hosts"]}

    def _webhdfs(self, path: str, operation: str) -> bytes:
        user = getpass.getuser()
        return _get(f"http://{self._name_node_http}/webhdfs/v1{quote(path)}?op={operation}&user.name={user}")

    def short_circuit_reads(self) -> int:
        """How often a reader was told where a block's file lies, to open it by itself."""
        info = self._beans(self._name_node_http, "Hadoop:service=NameNode,name=NameNodeInfo")
        live = json.loads(info[0]["LiveNodes"])  # "infoAddr" has the address that a data node came from, not its own
        addresses = [f"{name.split(':')[0]}:{node['infoAddr'].split(':')[1]}" for name, node in live.items()]
        activity = "Hadoop:service=DataNode,name=DataNodeActivity-*"
        return sum(bean["BlocksGetLocalPathInfo"] for node in addresses for bean in self._beans(node, activity))

    def _beans(self, address: str, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(_get(f"http://{address}/jmx?qry={name}"))["beans"]
        return found

    # --- applications ------------------------------------------------------------------------------------------------

    def submit(self, mode: str, *arguments: str, conf: dict[str, str] | None = None) -> Submitted:
        """Runs `spark-submit --master yarn jobs/batch_infer.py ARGUMENTS` to its end."""
        with self.start(mode, *arguments, conf=conf) as process:
            output, _ = process.communicate()
        return Submitted(process.returncode, output)

    def start(self, mode: str, *arguments: str, conf: dict[str, str] | None = None) -> subprocess.Popen[str]:
        """The same, in the background."""
        settings = dict(conf or {})
        if mode == "client":
            settings["spark.pyspark.driver.python"] = sys.executable
        properties = self.folder / "conf" / "spark-defaults.conf"
        command = [
            *(_SPARK_HOME / "bin" / "spark-submit", "--properties-file", properties, "--deploy-mode", mode),
            *(part for key, value in settings.items() for part in ("--conf", f"{key}={value}")),
            *(ROOT / "jobs" / "batch_infer.py", *arguments),
        ]
        unwanted = ("PYSPARK_DRIVER_PYTHON", "PYTHONPATH", "SPARK_CONF_DIR")
        environment = {
            **{key: value for key, value in os.environ.items() if key not in unwanted},
            "HADOOP_CONF_DIR": str(self.folder / "conf"),
            "JAVA_HOME": str(find_java()),
            "SPARK_HOME": str(_SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_PYTHON": "/nowhere/python",  # travels to the containers, where only the archive's may be used
        }
        return subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=self.folder,
            start_new_session=True,
        )

    def application(self, name: str) -> dict[str, Any]:
        """What the resource manager says of an application: state, finalStatus, diagnostics, ..."""
        url = f"http://{self._resource_manager_http}/ws/v1/cluster/apps/{name}"
        found: dict[str, Any] = json.loads(_get(url))["app"]
        return found

    def applications(self) -> list[str]:
        """Names of all applications."""
        found = json.loads(_get(f"http://{self._resource_manager_http}/ws/v1/cluster/apps"))["apps"] or {}
        return [application["id"] for application in found.get("app", [])]

    def events(self, application: str) -> list[dict[str, Any]]:
        """Spark's event log, from HDFS."""
        (name,) = (name for name in self.names("/spark-events") if name.startswith(application))
        return [json.loads(line) for line in self.read(f"/spark-events/{name}").splitlines()]

    def container_logs(self, application: str, name: str) -> str:
        """What all containers of an application wrote to `stderr` or `stdout`."""
        files = self.folder.glob(f"nodes/*/logs/{application}/*/{name}")
        return "\n".join(file.read_text("utf-8", errors="replace") for file in files)


def _get(url: str) -> bytes:
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        content: bytes = answer.read()
    return content
