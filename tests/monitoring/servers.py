"""A real Prometheus server and a real Pushgateway on this machine's loopback interface; for tests."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from sparkinfer.executor.guard_process import die_with_parent

__all__ = ["FOLDER", "LOOPBACK", "Prometheus", "free_port", "get", "prometheus", "pushgateway", "start", "wait_for"]

FOLDER = Path(__file__).parents[2] / "deploy" / "monitoring"
LOOPBACK = "127.0.0.1"
START_SECONDS = 60.0

Found = TypeVar("Found")


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.create_server((LOOPBACK, 0)) as server:
        return int(server.getsockname()[1])


def get(url: str) -> str:
    """What a server answers."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def wait_for(look: Callable[[], Found | None], what: str, seconds: float = START_SECONDS) -> Found:
    """What `look` finds, asked ten times a second; servers that do not answer yet have not found anything.

    Raises:
        TimeoutError: nothing found.
    """
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        with contextlib.suppress(urllib.error.URLError, ConnectionError):
            found = look()
            if found is not None:
                return found
        time.sleep(0.1)
    raise TimeoutError(f"no {what} in {seconds:g} s")


class Prometheus:
    """A running server.

    Attributes:
        url: of its pages.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, path: str, **parameters: str) -> Any:
        """The `data` of an answer of its HTTP API."""
        query = urllib.parse.urlencode(parameters)
        return json.loads(get(f"{self.url}/api/v1/{path}?{query}"))["data"]

    def values(self, query: str) -> list[float]:
        """The present value of each series that a query gives."""
        return [float(series["value"][1]) for series in self.ask("query", query=query)["result"]]

    def targets_up(self) -> dict[str, bool]:
        """Scrape job -> whether its last scrape went well."""
        return {target["scrapePool"]: target["health"] == "up" for target in self.ask("targets")["activeTargets"]}


@contextmanager
def prometheus(folder: Path) -> Iterator[Prometheus]:
    """Runs Prometheus with a folder's prometheus.yml, until the context is left."""
    address = f"{LOOPBACK}:{free_port()}"
    command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    with _running([*command, f"--web.listen-address={address}"], folder / "prometheus.log"):
        server = Prometheus(f"http://{address}")
        wait_for(lambda: get(f"{server.url}/-/ready"), "Prometheus")
        yield server


@contextmanager
def pushgateway(folder: Path) -> Iterator[str]:
    """Runs a Pushgateway until the context is left; gives its URL."""
    address = f"{LOOPBACK}:{free_port()}"
    # Debian's keeps what it was told in a file of the system's by default, for the next one to remember.
    options = [f"--web.listen-address={address}", f"--persistence.file={folder / 'pushgateway.data'}"]
    with _running(["prometheus-pushgateway", *options], folder / "pushgateway.log"):
        wait_for(lambda: get(f"http://{address}/-/ready"), "Pushgateway")
        yield f"http://{address}"


def start(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Starts a process that says everything to a file, and ends with this one, however this one ends."""
    with log.open("wb") as file:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509 - also when this process is killed
        )


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[None]:
    process = start(command, log)
    try:
        yield
    finally:
        process.terminate()
        process.wait()
