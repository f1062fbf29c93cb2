"""A real Spark standalone cluster of several processes on this machine's loopback interface. Linux; for tests.

One Master and some Workers, each on an address of its own (127.0.0.2, 127.0.0.3, ...), so that Spark takes them for
different nodes. Every process that comes of it, executors and Python workers included, carries a mark in its
environment: that is how all of them are found and ended, whatever happened to their parents.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from functools import partial
from pathlib import Path
from typing import Self

import psutil
import pyspark

from sparkinfer.driver.session import find_java
from sparkinfer.executor.guard_process import die_with_parent

__all__ = ["Cluster", "Executor", "Node"]

MASTER_HOST = "127.0.0.1"
START_SECONDS = 60.0
"""A Master or a Worker that has not come up by then never will; on two busy cores they take 5 s."""

_MARK = "SPARKINFER_CLUSTER"
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_DAEMON = "pyspark.daemon"


class Executor:
    """An executor JVM on a node.

    Attributes:
        process: the JVM.
        app, id: Spark's names for it.
    """

    def __init__(self, process: psutil.Process, command: list[str]) -> None:
        self.process = process
        self.app = command[command.index("--app-id") + 1]
        self.id = command[command.index("--executor-id") + 1]

    def daemons(self) -> list[psutil.Process]:
        """The processes that fork its Python workers."""
        return [child for child in _children(self.process) if _DAEMON in " ".join(_command(child))]

    def workers(self) -> list[psutil.Process]:
        """Its Python workers, and the children that guard rows in them."""
        return [
            worker for daemon in self.daemons() for worker in _children(daemon, recursive=True) if _is_alive(worker)
        ]


class Node:
    """One Worker and what runs below it.

    Args:
        cluster: whose.
        number: from 0.
    """

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.host = f"127.0.0.{number + 2}"
        self._cluster = cluster
        self._process: subprocess.Popen[bytes] | None = None
        self._frozen: list[psutil.Process] = []
        self._starts = 0

    def start(self) -> None:
        """Starts the Worker; does not wait until the Master knows it."""
        self._starts += 1
        place = self._cluster.folder / f"work-{self.host}"
        cores = str(self._cluster.cores)
        options = ["--cores", cores, "--memory", "1g", "--work-dir", str(place), self._cluster.url]
        self._process = self._cluster.spawn(_WORKER, options, self.log, self.host)

    @property
    def log(self) -> Path:
        """What its Worker says."""
        return self._cluster.folder / f"worker-{self.host}-{self._starts}.log"

    @property
    def is_up(self) -> bool:
        """Whether its Worker runs, and is not frozen."""
        return self._process is not None and self._process.poll() is None and not self._frozen

    def executors(self) -> list[Executor]:
        """Its living executors."""
        if self._process is None:
            return []
        found = ((child, _command(child)) for child in _children(psutil.Process(self._process.pid)))
        return [Executor(child, command) for child, command in found if "--executor-id" in command]

    def kill_worker(self) -> None:
        """SIGKILL for the Worker alone: its executors find out."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def kill_all(self) -> None:
        """SIGKILL for the Worker and everything below it at once, as when a machine loses its power."""
        self._signal_all(signal.SIGKILL)
        assert self._process is not None
        self._process.wait()

    def freeze(self) -> None:
        """SIGSTOP for the Worker and everything below it: alive, and silent."""
        self._frozen = self._signal_all(signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets a frozen node go on."""
        for process in self._frozen:
            with contextlib.suppress(psutil.Error):
                process.resume()
        self._frozen = []

    def _signal_all(self, number: signal.Signals) -> list[psutil.Process]:
        assert self._process is not None
        worker = psutil.Process(self._process.pid)
        everything = [worker, *_children(worker, recursive=True)]
        for process in everything:
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
        return everything


class Cluster:
    """A running cluster; use as a context manager.

    Args:
        folder: for logs and work directories; made when missing.
        properties: given to the Master and the Workers too.
        nodes: how many Workers.
        cores: of each Worker, as it tells the Master: the machine may have fewer.

    Attributes:
        url: for `spark.master`.
        nodes: the Workers.

    Raises:
        SpecError: there is no Java.
    """

    def __init__(self, folder: Path, properties: Path, nodes: int = 2, cores: int = 1) -> None:
        self.folder = folder
        self.cores = cores
        self.url = ""
        self.nodes = [Node(self, number) for number in range(nodes)]
        self._properties = properties
        self._mark = uuid.uuid4().hex
        self._java = find_java()
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            log = self.folder / "master.log"
            master = self.spawn(_MASTER, [], log, MASTER_HOST)
            self.url = _wait_for(rf"spark://{re.escape(MASTER_HOST)}:\d+", log, master)
            for node in self.nodes:
                node.start()
            for node in self.nodes:
                assert node._process is not None
                _wait_for("Successfully registered with master", node.log, node._process)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends every process that came of this cluster."""
        while processes := self.all_processes():  # again for what was forked meanwhile
            for process in processes:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(processes, timeout=1)
        for child in self._started:
            child.wait()

    def environment(self, host: str = MASTER_HOST) -> dict[str, str]:
        """For a process that belongs to the cluster, the driver included."""
        return {
            **os.environ,
            _MARK: self._mark,
            "JAVA_HOME": str(self._java),
            "SPARK_HOME": str(_SPARK_HOME),
            "SPARK_LOCAL_IP": host,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "LC_ALL": "C.UTF-8",
            "SPARK_DAEMON_MEMORY": "256m",
            # Several JVMs share few cores: no compiler threads and collector threads beyond need.
            "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        }

    def spawn(self, kind: str, options: list[str], log: Path, host: str) -> subprocess.Popen[bytes]:
        """Starts a Master or a Worker in a session of its own."""
        place = ["--properties-file", str(self._properties), "--host", host, "--port", "0", "--webui-port", "0"]
        with log.open("ab") as file:
            process = subprocess.Popen(
                [_SPARK_HOME / "bin" / "spark-class", kind, *place, *options],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=self.environment(host),
                start_new_session=True,
                preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509 - also when this process is killed
            )
        self._started.append(process)
        return process

    def all_processes(self) -> list[psutil.Process]:
        """Every living process that carries this cluster's mark."""
        return [process for process in psutil.process_iter() if self._is_ours(process)]

    def _is_ours(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(_MARK) == self._mark
        except psutil.Error:
            return False


_SPARK_HOME = Path(pyspark.__file__).parent


def _wait_for(pattern: str, log: Path, process: subprocess.Popen[bytes]) -> str:
    """The first text in a process's log that matches.

    Raises:
        RuntimeError: the process ended, or says nothing of the kind.
    """
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        found = re.search(pattern, log.read_text("utf-8", errors="replace"))
        if found:
            return found.group()
        time.sleep(0.1)
    raise RuntimeError(f"no {pattern!r} in {log}:\n{log.read_text('utf-8', errors='replace')[-2000:]}")


def _children(process: psutil.Process, *, recursive: bool = False) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=recursive))
    except psutil.Error:
        return []


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
