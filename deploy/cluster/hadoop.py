"""A small Hadoop on the loopback interface: a name node, data nodes, a resource manager and node managers. Linux.

    python deploy/cluster/hadoop.py start        # daemons, in the background; `make cluster` adds data and an example
    python deploy/cluster/hadoop.py dfs -ls /    # `hdfs dfs`
    python deploy/cluster/hadoop.py yarn application -list -appStates ALL
    python deploy/cluster/hadoop.py stop

Everything lies in one folder (`--folder`, by default build/cluster): `conf` is the HADOOP_CONF_DIR for clients, `logs`
has what the daemons say, `nodes/ADDRESS/logs` what the containers say. Node N is 127.0.0.1N: its data node and its
node manager share that address, which is how Spark finds that a block is near; `localhost` it would not take for near.

The daemons are Hadoop's own main classes, out of `hadoop-client-minicluster` (the servers) and the client jars in
pyspark; the former comes from Maven Central by Spark's `--packages` and is kept in ~/.cache/sparkinfer. Needs Java 17
or 21 and psutil.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

MARK = "SPARKINFER_HADOOP"
"""Environment variable of every process that comes of a cluster, containers included; its value is the cluster's."""

BOUNCY_CASTLE = "org.bouncycastle:bcpkix-jdk18on:1.82"
"""The resource manager makes certificates; the minicluster jar leaves this library to its user."""

START_SECONDS = 120.0
"""What has not come up by then never will; on two idle cores it takes some 20 s."""

HERE = Path(__file__).resolve().parent
JVM_OPTIONS = [
    # Six JVMs share few cores: no heavy compiler, no collector threads, small heaps.
    *("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"),
    *("-Djava.net.preferIPv4Stack=true", "-Dlog4j2.level=INFO"),
    *("--add-opens=java.base/java.lang=ALL-UNNAMED", "--add-opens=java.base/java.net=ALL-UNNAMED"),
]
SERVER = "org.apache.hadoop.{}.server.{}"
NAME_NODE = SERVER.format("hdfs", "namenode.NameNode")
DATA_NODE = SERVER.format("hdfs", "datanode.DataNode")
RESOURCE_MANAGER = SERVER.format("yarn", "resourcemanager.ResourceManager")
NODE_MANAGER = SERVER.format("yarn", "nodemanager.NodeManager")
TOOLS = {
    ("dfs",): "org.apache.hadoop.fs.FsShell",
    ("yarn", "application"): "org.apache.hadoop.yarn.client.cli.ApplicationCLI",
    ("yarn", "node"): "org.apache.hadoop.yarn.client.cli.NodeCLI",
}


class ClusterError(Exception):
    """What a person is told, without a stack trace."""

    status = 1


class MissingError(ClusterError):
    """Something is not installed, or cannot be fetched."""

    status = 2


@dataclass(frozen=True)
class Cluster:
    """A cluster's folder.

    Attributes:
        folder: absolute.
    """

    folder: Path

    @property
    def conf(self) -> Path:
        """HADOOP_CONF_DIR."""
        return self.folder / "conf"

    @property
    def state(self) -> Path:
        """What `start` wrote down: addresses and the mark."""
        return self.folder / "cluster.json"

    def read_state(self) -> dict[str, Any]:
        """The content of `state`.

        Raises:
            ClusterError: nothing was started here.
        """
        try:
            found: dict[str, Any] = json.loads(self.state.read_text("utf-8"))
        except FileNotFoundError:
            raise ClusterError(f"no cluster in {self.folder}: start one with `make cluster`") from None
        return found


def main() -> None:
    """Runs a command."""
    parser = argparse.ArgumentParser(description="A small Hadoop (HDFS and YARN) on the loopback interface.")
    parser.add_argument("--folder", type=Path, default=Path("build/cluster"), help="where it lives")
    commands = parser.add_subparsers(dest="command", required=True)
    starting = commands.add_parser("start", help="start the daemons and wait until they are ready")
    starting.add_argument("--nodes", type=int, default=2, help="data nodes, and as many node managers")
    commands.add_parser("stop", help="end every process of the cluster")
    for name in ("dfs", "yarn"):
        # No character begins an option here: -ls and the like are Hadoop's.
        tool = commands.add_parser(name, help=f"Hadoop's own `{name}` command", add_help=False, prefix_chars="\0")
        tool.add_argument("arguments", nargs="*")
    options = parser.parse_args()
    cluster = Cluster(options.folder.resolve())
    try:
        if options.command == "start":
            start(cluster, options.nodes)
        elif options.command == "stop":
            stop(cluster)
        else:
            run_tool(cluster, options.command, options.arguments)
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        sys.exit(error.status)


def start(cluster: Cluster, nodes: int) -> None:
    """Starts a fresh cluster; what an earlier one in the same folder held is gone.

    Raises:
        ClusterError: one is running there, something is missing, or a daemon does not come up.
    """
    if cluster.state.exists() and _processes(cluster.read_state()["mark"]):
        raise ClusterError(f"one is running in {cluster.folder} already: `make cluster-stop` ends it")
    java, classpath = find_java(), find_classpath()
    shutil.rmtree(cluster.folder, ignore_errors=True)
    (cluster.folder / "logs").mkdir(parents=True)
    mark, places = uuid.uuid4().hex, {**_places(cluster), "spark_jars": str(_spark_home() / "jars")}
    addresses = [f"127.0.0.1{number}" for number in range(1, nodes + 1)]
    state = {"mark": mark, "nodes": addresses, **places}
    cluster.state.write_text(json.dumps(state, indent=1), "utf-8")
    _write_conf(cluster, places)
    launcher = _Launcher(cluster, java, classpath, mark)
    try:
        resource_manager = launcher.spawn("resource-manager", RESOURCE_MANAGER)
        launcher.run("format", NAME_NODE, "-format", "-nonInteractive")
        name_node = launcher.spawn("name-node", NAME_NODE)
        for address in addresses:
            launcher.spawn(f"data-node-{address}", DATA_NODE, *_data_node_settings(cluster, address))
            launcher.spawn(f"node-manager-{address}", NODE_MANAGER, *_node_manager_settings(cluster, address))
        launcher.wait(lambda: _live_data_nodes(places["name_node_http"]) == nodes, "data nodes", name_node)
        launcher.wait(
            lambda: _active_node_managers(places["resource_manager_http"]) == nodes, "node managers", resource_manager
        )
    except BaseException:
        stop(cluster)
        raise
    print(f"HDFS {places['name_node']}, YARN http://{places['resource_manager_http']}, nodes {', '.join(addresses)}")


def stop(cluster: Cluster) -> None:
    """Ends every process that came of the cluster, containers included; logs and data stay."""
    mark = cluster.read_state()["mark"]
    first, seconds = True, 5.0
    while processes := _processes(mark):
        for process in processes:
            with contextlib.suppress(psutil.Error):
                # A node manager that is asked first ends its containers in order.
                process.terminate() if first else process.kill()
        psutil.wait_procs(processes, timeout=seconds)
        first, seconds = False, 1.0


def run_tool(cluster: Cluster, command: str, arguments: list[str]) -> None:
    """Becomes one of Hadoop's own commands.

    Raises:
        ClusterError: an unknown one, or there is no cluster.
    """
    cluster.read_state()
    key = (command,) if command == "dfs" else (command, *arguments[:1])
    if key not in TOOLS:
        raise ClusterError(f"knows {', '.join(' '.join(known) for known in TOOLS)}; not {' '.join(key)}")
    environment = {**os.environ, "HADOOP_CONF_DIR": str(cluster.conf)}
    java = find_java() / "bin" / "java"
    jars = f"{cluster.conf}:{find_classpath()}"
    # Those of `yarn` want their own name as the first argument.
    quiet = ["-Xshare:auto", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=ERROR"]
    os.execve(java, [str(java), *quiet, "-cp", jars, TOOLS[key], *arguments], environment)  # noqa: S606


def find_java() -> Path:
    """JAVA_HOME of a Java that Hadoop runs on.

    Raises:
        MissingError: there is none; says how to install it.
    """
    answer = subprocess.run([HERE.parent / "find_java.sh"], check=False, capture_output=True, text=True)
    if answer.returncode:
        raise MissingError(answer.stderr.strip())
    return Path(answer.stdout.strip())


def find_classpath() -> str:
    """The servers' jar and pyspark's jars, which hold Hadoop's client of the same version.

    Raises:
        MissingError: there is no pyspark, or the servers cannot be fetched; says what to do.
    """
    home = _spark_home()
    (client,) = (home / "jars").glob("hadoop-client-api-*.jar")
    version = client.stem.rpartition("-")[2]
    ivy = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sparkinfer" / "ivy"
    jars = list((ivy / "jars").glob(f"*hadoop-client-minicluster-{version}.jar"))
    if not jars or not list((ivy / "jars").glob("*bcpkix*.jar")):
        _fetch(home, version, ivy)
    return f"{ivy}/jars/*:{home}/jars/*"


def _spark_home() -> Path:
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise MissingError("there is no pyspark in this environment: run it with .venv/bin/python, after `make venv`")
    return Path(found.origin).parent


def _fetch(spark: Path, version: str, ivy: Path) -> None:
    """Has Spark fetch the servers' jar, which takes no other tool; Maven's own settings are not looked at."""
    print(f"fetching Hadoop's servers {version} (60 MB) into {ivy}", file=sys.stderr)
    in_pyspark = ("org.apache.hadoop:hadoop-client-api", "org.apache.hadoop:hadoop-client-runtime")
    unused = ("org.xerial.snappy:snappy-java", "org.apache.hadoop:hadoop-annotations")
    command = [
        *(str(spark / "bin" / "spark-submit"), "--master", "local[1]", "--conf", f"spark.jars.ivy={ivy}"),
        *("--packages", f"org.apache.hadoop:hadoop-client-minicluster:{version},{BOUNCY_CASTLE}"),
        *("--exclude-packages", ",".join([*in_pyspark, *unused])),
        *("--class", "org.apache.hadoop.util.VersionInfo", "spark-internal"),
    ]
    environment = {**os.environ, "JAVA_HOME": str(find_java()), "SPARK_HOME": str(spark)}
    answer = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if answer.returncode:
        raise MissingError(
            f"Hadoop's servers {version} cannot be fetched from Maven Central:\n{answer.stderr[-2000:]}\n"
            f"Behind a mirror, name it with spark.jars.ivySettings in spark-defaults.conf, or put "
            f"hadoop-client-minicluster-{version}.jar and bcpkix, bcprov, bcutil of {BOUNCY_CASTLE} into {ivy}/jars"
        )


def _places(cluster: Cluster) -> dict[str, str]:
    """The values of the templates: addresses with free ports, all held until all are chosen."""
    names = (
        *("name_node", "name_node_http", "resource_manager", "resource_manager_http"),
        *("scheduler", "tracker", "admin"),
    )
    with contextlib.ExitStack() as held:
        sockets = {name: held.enter_context(socket.create_server(("127.0.0.1", 0))) for name in names}
        found = {name: f"127.0.0.1:{port.getsockname()[1]}" for name, port in sockets.items()}
    found["name_node"] = f"hdfs://{found['name_node']}"
    return {**found, "folder": str(cluster.folder), "user": getpass.getuser()}


def _write_conf(cluster: Cluster, places: dict[str, str]) -> None:
    cluster.conf.mkdir()
    for template in (HERE / "conf").iterdir():
        text = template.read_text("utf-8")
        for name, value in places.items():
            text = text.replace(f"@{name}@", value)
        (cluster.conf / template.name).write_text(text, "utf-8")


def _data_node_settings(cluster: Cluster, address: str) -> Iterator[str]:
    for part in ("address", "ipc.address", "http.address"):
        yield f"-Ddfs.datanode.{part}={address}:0"
    yield f"-Ddfs.datanode.hostname={address}"
    yield f"-Ddfs.datanode.data.dir=file://{cluster.folder}/nodes/{address}/data"


def _node_manager_settings(cluster: Cluster, address: str) -> Iterator[str]:
    yield f"-Dyarn.nodemanager.hostname={address}"
    for part in ("address", "localizer.address", "webapp.address", "collector-service.address"):
        yield f"-Dyarn.nodemanager.{part}={address}:0"
    yield f"-Dyarn.nodemanager.local-dirs={cluster.folder}/nodes/{address}/local"
    yield f"-Dyarn.nodemanager.log-dirs={cluster.folder}/nodes/{address}/logs"


class _Launcher:
    """Starts daemons, each in a session of its own."""

    def __init__(self, cluster: Cluster, java: Path, classpath: str, mark: str) -> None:
        self._cluster = cluster
        self._command = [str(java / "bin" / "java"), *JVM_OPTIONS, "-cp", f"{cluster.conf}:{classpath}"]
        self._environment = {
            **os.environ,
            MARK: mark,
            "JAVA_HOME": str(java),
            "HADOOP_CONF_DIR": str(cluster.conf),
            "LC_ALL": "C.UTF-8",
        }
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def spawn(self, name: str, kind: str, *arguments: str) -> str:
        """Starts one; returns its name."""
        with self._log(name).open("wb") as log:
            self._daemons[name] = subprocess.Popen(
                [*self._command, kind, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                start_new_session=True,
            )
        return name

    def run(self, name: str, kind: str, *arguments: str) -> None:
        """Runs one to its end."""
        if self._daemons[self.spawn(name, kind, *arguments)].wait():
            raise self._failure(name)
        del self._daemons[name]

    def wait(self, is_ready: Callable[[], bool], what: str, asked: str) -> None:
        """Returns when something is so.

        Raises:
            ClusterError: a daemon ended, or it never became so; shows the end of the log of the one that was `asked`.
        """
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            for name, daemon in self._daemons.items():
                if daemon.poll() is not None:
                    raise self._failure(name)
            if is_ready():
                return
            time.sleep(0.2)
        raise ClusterError(f"no {what} after {START_SECONDS:g} s; see {self._log(asked)}")

    def _failure(self, name: str) -> ClusterError:
        end = self._log(name).read_text("utf-8", errors="replace")[-3000:]
        return ClusterError(f"the {name.replace('-', ' ')} ended:\n{end}\n(all of it: {self._log(name)})")

    def _log(self, name: str) -> Path:
        return self._cluster.folder / "logs" / f"{name}.log"


def _live_data_nodes(name_node_http: str) -> int:
    """How many data nodes the name node knows; 0 while it is not open for writing."""
    beans = _ask(f"http://{name_node_http}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState")
    state: dict[str, Any] = next(iter(beans.get("beans", [])), {})
    return int(state.get("NumLiveDataNodes", 0)) if state.get("FSState") == "Operational" else 0


def _active_node_managers(resource_manager_http: str) -> int:
    metrics = _ask(f"http://{resource_manager_http}/ws/v1/cluster/metrics")
    return int(metrics.get("clusterMetrics", {}).get("activeNodes", 0))


def _ask(url: str) -> dict[str, Any]:
    """A daemon's answer; empty while it does not answer."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - our own loopback address
            found: dict[str, Any] = json.load(answer)
    except (OSError, ValueError):
        return {}
    return found


def _processes(mark: str) -> list[psutil.Process]:
    """Every living process with this mark."""

    def is_marked(process: psutil.Process) -> bool:
        try:
            return bool(process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE)
        except psutil.Error:
            return False

    return [process for process in psutil.process_iter() if is_marked(process)]


if __name__ == "__main__":
    main()
