"""Predictions in SQL for others: Spark's Thrift server, asked over JDBC by a client in another process."""

from __future__ import annotations

import csv
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from threading import Thread

import psutil
import pytest

from sparkinfer.core.errors import SparkInferError
from sparkinfer.driver.session import find_java

pytestmark = [pytest.mark.cluster, pytest.mark.spark]

ROOT = Path(__file__).parents[2]
SQL = ROOT / "deploy" / "sql"
BIN = Path(sys.executable).parent
STARTED = "ThriftBinaryCLIService on port"
OPTIONS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.sql.shuffle.partitions": "2",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder where a job has left its tables."""
    try:
        find_java()
    except SparkInferError as error:
        if os.environ.get("CI"):
            pytest.fail(error.render())
        pytest.skip(error.render())
    folder = tmp_path_factory.mktemp("sql")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "LC_ALL": "C.UTF-8"}
    command = [sys.executable, "-m", "tests.cluster.thrift_job", str(folder)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def server(place):
    """Port and process id of a server of those tables."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = [part for key, value in OPTIONS.items() for part in ("--conf", f"{key}={value}")]
    with subprocess.Popen(
        [SQL / "thrift_server.sh", "--master", "local[2]", *options],
        cwd=place,
        env={**os.environ, "PORT": str(port), "VENV": sys.prefix},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            seen = list(_until(STARTED, process.stderr))
            if process.poll() is not None or STARTED not in seen[-1]:
                pytest.fail("the server has ended:\n" + "".join(seen[-40:]))
            # What it says later must not fill the pipe.
            Thread(target=process.stderr.read, daemon=True).start()
            yield port, process.pid
        finally:
            os.killpg(process.pid, signal.SIGTERM)


def _until(text, lines):
    """Lines up to the first with `text`."""
    for line in lines:
        yield line
        if text in line:
            return


def ask(server, *arguments):
    """The tables of an outside client's answers: each a list of rows as dictionaries of texts."""
    beeline = [str(ROOT / "deploy" / "with_spark.sh"), sys.prefix, str(BIN / "beeline")]
    command = [*beeline, "-u", f"jdbc:hive2://127.0.0.1:{server[0]}/default", "-n", "somebody"]
    form = ["--silent=true", "--outputformat=csv2", "--nullemptystring=true"]
    done = subprocess.run([*command, *form, *arguments], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return [list(csv.DictReader(block)) for block in _blocks(done.stdout.splitlines())]


def _blocks(lines):
    """Cuts the lines where a header stands: each query of `queries.sql` names its first column otherwise.

    Without a terminal the client writes its prompt all the same, silent or not, before whatever comes next.
    """
    blocks = []
    for line in filter(None, (re.sub(r"^(null|\d+: jdbc:[^>]*>)\s*", "", line) for line in lines)):
        if line.split(",")[0] in {"label", "path", "error_stage", "album"} or not blocks:
            blocks.append([])
        blocks[-1].append(line)
    return blocks


def test_the_example_queries(server):
    answers = ask(server, "-f", str(SQL / "queries.sql"))
    labels, unsure, errors, albums = answers
    assert labels == [
        {"label": "blue", "images": "2"},
        {"label": "red", "images": "2"},
        {"label": "green", "images": "1"},
    ]
    # Of three classes the confidence is the mean of a colour: 102 / 255 here, second its green, 20 / 255.
    assert unsure == [{"path": "night.png", "label": "blue", "confidence": "0.4", "second": "green"}]
    assert errors == [
        {"error_stage": "decode", "error_code": "UNSUPPORTED_FORMAT", "images": "2", "example": "list.txt"},
        {"error_stage": "read", "error_code": "EMPTY", "images": "1", "example": "empty.png"},
    ]
    assert albums == [
        {"album": "beach", "label": "red", "images": "2", "mean_confidence": "0.792"},  # (200 + 204) / 2 / 255
        {"album": "beach", "label": "blue", "images": "1", "mean_confidence": "0.863"},  # 220 / 255
        {"album": "city", "label": "blue", "images": "1", "mean_confidence": "0.4"},
        {"album": "city", "label": "green", "images": "1", "mean_confidence": "0.824"},  # 210 / 255
    ]


def test_a_question_of_ones_own(server):
    query = "SELECT count(DISTINCT path) AS n, count(DISTINCT run_id) AS runs, max(model_version) AS v FROM predictions"
    assert ask(server, "-e", query) == [[{"n": "8", "runs": "1", "v": "7"}]]


def test_it_listens_on_loopback_only(server):
    port, pid = server
    listening = [
        (connection.laddr.ip.removeprefix("::ffff:"), connection.laddr.port)
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert port in {at for _, at in listening}
    assert {ip for ip, _ in listening} <= {"127.0.0.1", "::1"}
