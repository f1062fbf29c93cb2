"""Whole jobs with secrets in their job file: they are in nothing that is left, and on no command line."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from sparkinfer.core.errors import SparkInferError
from sparkinfer.driver import session
from sparkinfer.driver.job import run_job
from tests.executor.chain import png_of
from tests.spark.test_job import job
from tests.spark.webhdfs import FakeWebHdfs

pytestmark = pytest.mark.spark

SECRET = "Zq7secretqZ"


def everything_in(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())


@pytest.fixture
def node():
    files = {"/photos/a b.png": png_of(1, 2, 3), "/photos/bad@5.png": b"no image", "/photos/empty.png": b""}
    with FakeWebHdfs(files) as running:
        yield running


@pytest.mark.parametrize("kind", ["images", "paths"])
def test_a_login_in_a_uri_is_in_nothing_that_a_job_leaves(spark, node, tmp_path, kind, caplog, capfd):
    root = f"webhdfs://me:{SECRET}@{node.address}"
    source = {"images": f"{root}/photos"}
    if kind == "paths":
        listed = tmp_path / "paths.txt"
        listed.write_text("".join(f"{root}{name}\n" for name in [*node.files, "/photos/gone.png"]))
        source = {"paths": str(listed)}
    spec = job(
        tmp_path,
        source,
        report=str(tmp_path / "report"),
        model={"options": {"api_key": SECRET}},
        sink={"path": str(tmp_path / "out"), "options": {"password": SECRET}},
        spark={"conf": {"spark.hadoop.fs.s3a.secret.key": SECRET}},
    )
    console = Console(record=True, width=200)
    with caplog.at_level(logging.DEBUG, "sparkinfer"):
        result = run_job(spec, console)
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    masked = f"webhdfs://***@{node.address}"
    expected = [*node.files, "/photos/gone.png"] if kind == "paths" else list(node.files)
    assert sorted(row["path"] for row in rows) == sorted(masked + name for name in expected)
    assert sum(row["error_code"] is None for row in rows) == 1  # and it was read, with the login
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["samples"] == result.samples
    texts = [console.export_text(), caplog.text, json.dumps(report), json.dumps([row.asDict() for row in rows])]
    assert not any(SECRET in text for text in texts)
    assert SECRET.encode() not in everything_in(tmp_path / "out") + everything_in(tmp_path / "report")
    assert SECRET not in "".join(capfd.readouterr())


def test_an_error_about_a_uri_shows_no_login(spark, tmp_path):
    for source in ({"images": f"webhdfs://me:{SECRET}@localhost:9/photos"}, {"images": f"s3a://AK:{SECRET}@bucket/x"}):
        with pytest.raises(SparkInferError) as caught:
            run_job(job(tmp_path, source))
        assert SECRET not in caught.value.render()


SESSION = """
import sys
from pyspark.sql import SparkSession
from sparkinfer.driver.spark.gateway import start_context
start_context({
    "spark.master": "local[1]", "spark.app.name": "ps", "spark.ui.enabled": "false", "spark.driver.host": "localhost",
    "spark.driver.bindAddress": "localhost", "spark.log.level": "ERROR", "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-Dlog4j2.configurationFile=" + sys.argv[2],
    "spark.hadoop.fs.s3a.secret.key": sys.argv[1], "spark.hadoop.fs.x.uri": f"s3a://k:{sys.argv[1]}@b/",
})
session = SparkSession.builder.getOrCreate()
hadoop = session._jsparkSession.sessionState().newHadoopConf()
log = session._jvm.org.apache.logging.log4j.LogManager.getLogger("org.apache.hadoop.Loud")
log.error(f"s3a://k:{sys.argv[1]}@b/x is slow", session._jvm.java.io.IOException(f"reading 's3a://k:{sys.argv[1]}@b/x'"))
print("ready", hadoop.get("fs.s3a.secret.key") == sys.argv[1], session.conf.get("spark.driver.memory"), flush=True)
sys.stdin.readline()
session.stop()
"""


def command_lines() -> dict[int, bytes]:
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found[int(folder.name)] = (folder / "cmdline").read_bytes()
        except OSError:
            continue
    return found


@pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="needs /proc")
def test_no_secret_setting_is_on_java_s_command_line(tmp_path):
    """As `ps` shows it to every user. pyspark by itself puts all settings there. Nor is a login in Java's own log."""
    logging_conf = Path(session.__file__).with_name("log4j2.properties").as_uri()
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYSPARK_")}
    child = subprocess.Popen(
        [sys.executable, "-c", SESSION, SECRET, logging_conf],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
        cwd=tmp_path,
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready True 512m\n"
        lines = {pid: line for pid, line in command_lines().items() if pid != child.pid}
        java = [line for line in lines.values() if b"spark.app.name=ps" in line]
        assert java  # what is no secret is there
        assert not any(SECRET.encode() in line for line in lines.values())
        said = child.communicate("\n", timeout=60)[1]
        assert "s3a://***@b/x is slow" in said
        assert "IOException: reading 's3a://***@b/x'" in said
        assert SECRET not in said
    finally:
        child.kill()
        child.wait()
