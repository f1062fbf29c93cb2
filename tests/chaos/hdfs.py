"""An HDFS that goes away and comes back: the daemons of `deploy/cluster/hadoop.py`, stopped or killed. Linux."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.cluster.yarn import SCRIPT, Hadoop

__all__ = ["HOWS", "PARTS", "Outage", "hdfs", "wait_until_back"]

PARTS = {
    "name-node": "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "data-nodes": "org.apache.hadoop.hdfs.server.datanode.DataNode",
}
"""What can go away, all of its kind at once: main classes."""

HOWS = ("stop", "kill")
"""SIGSTOP, after which connections stay open and nobody answers; SIGKILL, after which they are refused."""

START_SECONDS = 120.0
"""As deploy/cluster/hadoop.py has it."""

_MARK = "SPARKINFER_HADOOP"
"""`MARK` of deploy/cluster/hadoop.py."""


class Outage:
    """Daemons that are away; one after another, never two at once.

    Args:
        hadoop: running.
        part: of `PARTS`.
        how: of `HOWS`.
    """

    def __init__(self, hadoop: Hadoop, part: str, how: str) -> None:
        self._hadoop, self._part, self._how = hadoop, part, how
        self._processes: list[psutil.Process] = []
        self._commands: list[tuple[list[str], dict[str, str], str]] = []

    def begin(self) -> None:
        """The daemons are away when it returns."""
        self._processes = list(_daemons(self._hadoop, PARTS[self._part]))
        assert self._processes
        self._commands = [(process.cmdline(), process.environ(), process.cwd()) for process in self._processes]
        for process in self._processes:
            if self._how == "stop":
                process.suspend()
            else:
                process.kill()
        if self._how == "kill":
            psutil.wait_procs(self._processes)

    def end(self) -> None:
        """They go on, or are started again as they were; does not wait until they answer."""
        if self._how == "stop":
            for process in self._processes:
                with suppress(psutil.Error):
                    process.resume()
            return
        for number, (command, environment, place) in enumerate(self._commands):
            with (self._hadoop.folder / "logs" / f"{self._part}-again-{number}.log").open("ab") as log:
                # In the background, and nobody's child: it is the cluster's to end.
                subprocess.run(
                    ["setsid", "--fork", *command],
                    check=True,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=environment,
                    cwd=place,
                )
        self._commands = []


def wait_until_back(hadoop: Hadoop) -> None:
    """Returns when a file can be written and read.

    Raises:
        RuntimeError: not within `START_SECONDS`.
    """
    until, said = time.monotonic() + START_SECONDS, ""
    while time.monotonic() < until:
        try:
            hadoop.dfs("-put", "-f", hadoop.folder / "cluster.json", "/probe")
            hadoop.dfs("-cat", "/probe")
        except subprocess.CalledProcessError as error:
            said = str(error.stderr)
        else:
            return
    raise RuntimeError(f"HDFS has not come back:\n{said[-2000:]}")


def _daemons(hadoop: Hadoop, main_class: str) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(_MARK) == hadoop.mark and main_class in process.cmdline():
                yield process


@contextmanager
def hdfs() -> Iterator[Hadoop]:
    """A cluster of its own.

    Raises:
        RuntimeError: it does not start; says why.
    """
    with tempfile.TemporaryDirectory(prefix="sparkinfer-hdfs-", ignore_cleanup_errors=True) as place:
        folder = Path(place) / "hadoop"
        command = [sys.executable, str(SCRIPT), "--folder", str(folder)]
        started = subprocess.run([*command, "start"], check=False, capture_output=True, text=True)
        if started.returncode:
            raise RuntimeError(started.stderr)
        try:
            yield Hadoop(folder)
        finally:
            subprocess.run([*command, "stop"], check=True)
