"""A real Prometheus watches a real job: every panel of the dashboard has data, and the counters are the table's.

The job keeps running (`resume.trigger`), in a process of its own, with a local master. It knows no GPU: the figures of
one come from a second page, made here from a made-up snapshot.
"""

from __future__ import annotations

import contextlib
import math
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
import yaml

from sparkinfer.core.spec import MetricsSpec
from sparkinfer.core.telemetry import DeviceFigures
from sparkinfer.driver.watching.metrics import PUSHED_JOB, exposed
from sparkinfer.driver.watching.metrics_page import Page, RunLabels
from sparkinfer.driver.watching.telemetry import Snapshot, TaskCounts
from tests.chaos.kill_job import make_photos
from tests.images import quarters
from tests.monitoring.panels import ALERTS, DASHBOARD, panel_queries, told_by
from tests.monitoring.servers import (
    LOOPBACK,
    START_SECONDS,
    Prometheus,
    free_port,
    get,
    prometheus,
    pushgateway,
    start,
    wait_for,
)
from tests.spark.models import fake_model_file

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(280)]

ROOT = Path(__file__).parents[2]
NAME = "watched photos"
GPU_NAME = "gpu"
PHOTOS_A_WAVE = 18
WATCH_SECONDS = 120.0


@dataclass
class Job:
    """A running job.

    Attributes:
        folder: of its files.
        page: its metrics.
        ui: address of its Spark UI.
    """

    folder: Path
    process: subprocess.Popen[bytes]
    page: str
    ui: str
    waves: int = 0

    def add_photos(self) -> None:
        """More input: of every 9 files one is damaged."""
        new = self.folder / f"new{self.waves}"
        make_photos([quarters((256, 192))], new, PHOTOS_A_WAVE)
        new.rename(self.folder / "photos" / str(self.waves))
        self.waves += 1

    @property
    def log(self) -> str:
        """What it has said."""
        return (self.folder / "job.log").read_text("utf-8")

    def counts(self) -> tuple[int, dict[str, int]]:
        """Rows and errors of the prediction table, as pyarrow reads it."""
        table = ds.dataset(self.folder / "out", format="parquet", partitioning="hive").to_table(["error_code"])
        codes = Counter(table["error_code"].to_pylist())
        return table.num_rows, {code: count for code, count in codes.items() if code is not None}


@contextmanager
def running_job(folder: Path, gateway: str) -> Iterator[Job]:
    (folder / "photos").mkdir(parents=True)
    ui_port = free_port()
    lines = [line.split() for line in (ROOT / "deploy/monitoring/spark-metrics.conf").read_text("utf-8").splitlines()]
    settings = dict(line for line in lines if line and line[0] != "#")
    spec = {
        "name": NAME,
        "source": {"images": str(folder / "photos")},
        "model": {"path": str(fake_model_file(folder, latency_s=0.02))},
        "batch": {"size": 4},
        "preprocess": {"resize": None, "crop": [32, 32]},
        "sink": {"path": str(folder / "out")},
        "resume": {"checkpoint": str(folder / "check"), "snapshot_every": "100 files", "trigger": "1s"},
        "metrics": {"port": 0, "address": LOOPBACK, "push": gateway},
        "spark": {
            "master": "local[2]",
            "conf": {
                **settings,
                "spark.ui.port": ui_port,
                "spark.driver.bindAddress": LOOPBACK,
                "spark.driver.host": LOOPBACK,
                # Spark's figures of memory and garbage collection come with heartbeats.
                "spark.executor.heartbeatInterval": "1s",
                "spark.local.dir": str(folder / "local"),
                "spark.sql.warehouse.dir": str(folder / "warehouse"),
            },
        },
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(spec))
    process = start([sys.executable, str(ROOT / "jobs/batch_infer.py"), str(folder / "job.yaml")], folder / "job.log")
    job = Job(folder, process, page="", ui=f"{LOOPBACK}:{ui_port}")
    try:
        job.add_photos()

        def page() -> str | None:
            assert process.poll() is None, job.log
            found = re.search(r"http://[\d.:]+/metrics", job.log)
            return found and found[0]

        job.page = wait_for(page, "metrics page")
        yield job
    finally:
        process.kill()
        process.wait()


@contextmanager
def gpu_page() -> Iterator[str]:
    """A page with the figures of a GPU."""
    gpu = DeviceFigures("cuda:0", "GPU-1", memory_used_bytes=20 << 30, memory_total_bytes=80 << 30, utilisation=0.75)
    seen = Snapshot("run-2", tasks=TaskCounts(running=1), devices=(("node1", gpu),))
    run = RunLabels(GPU_NAME, "run-2", "resnet50", "1", started=0.0)
    told: list[str] = []
    page = Page(run, figures=lambda: seen, imbalance=lambda: None)
    with exposed(MetricsSpec(port=0, address=LOOPBACK), page, GPU_NAME, LOOPBACK, told.append):
        yield told[0]


@dataclass
class Watched:
    """What was seen of a job from its start to its end.

    Attributes:
        missing: panels without data, with their queries.
        names: values of the dashboard's variable `name`.
        targets: scrape job -> whether it works.
        rules: alert -> health.
        page: the job's own, when all input was done and it waited for more.
        expected: rows and errors of the prediction table, then and at the end.
        files: that were put into its input.
        pushed: the gateway's page after the end.
        scraped: rows that Prometheus has from the gateway.
        status: the job's exit status.
    """

    missing: dict[str, str]
    names: list[str]
    targets: dict[str, bool]
    rules: dict[str, str]
    page: str
    expected: tuple[int, dict[str, int]]
    files: int
    pushed: str
    scraped: list[float]
    status: int


@pytest.fixture(scope="module")
def watched(monitoring, tmp_path_factory) -> Watched:
    """Starts everything with the project's own configuration, watches, and ends everything."""
    folder = tmp_path_factory.mktemp("monitoring")
    config = folder / "monitoring"
    shutil.copytree(monitoring, config)
    text = (config / "prometheus.yml").read_text("utf-8")
    (config / "prometheus.yml").write_text(text.replace(": 15s", ": 1s"))
    with pushgateway(folder) as gateway, running_job(folder / "job", gateway) as job, gpu_page() as gpu:
        hosts = {
            "sparkinfer": [host_of(job.page), host_of(gpu)],
            "spark-ui": [job.ui],
            "pushgateway": [host_of(gateway)],
        }
        for name, targets in hosts.items():
            (config / "targets" / f"{name}.yml").write_text(yaml.safe_dump([{"targets": targets}]))
        with prometheus(config) as server:
            return watch(job, server, gateway)


def host_of(url: str) -> str:
    return url.split("/")[2]


def watch(job: Job, server: Prometheus, gateway: str) -> Watched:
    missing = panels_without_data(job, server)
    names = server.ask("label/name/values", **{"match[]": NAMES_OF})
    # A busy machine misses a scrape now and then, and evaluates rules late.
    targets = settled(server.targets_up, lambda up: all(up.values()))
    rules = settled(lambda: health_of_rules(server), lambda health: "unknown" not in health.values())
    files = job.waves * PHOTOS_A_WAVE
    page = wait_for(lambda: settled_page(job.page, files), "page of a job that waits")
    expected = job.counts()
    job.process.send_signal(signal.SIGTERM)
    status = job.process.wait(60)
    pushed = get(f"{gateway}/metrics")
    query = f'sparkinfer_rows_total{{job="{PUSHED_JOB}", name="{NAME}"}}'
    scraped = wait_for(lambda: server.values(query) or None, "scrape of the gateway")
    assert job.counts() == expected
    return Watched(missing, names, targets, rules, page, expected, files, pushed, scraped, status)


def health_of_rules(server: Prometheus) -> dict[str, str]:
    return {rule["name"]: rule["health"] for group in server.ask("rules")["groups"] for rule in group["rules"]}


def settled(ask: Callable[[], Any], is_right: Callable[[Any], bool]) -> Any:
    """What is told once it is right, or after a time whatever is told."""
    with contextlib.suppress(TimeoutError):
        wait_for(lambda: is_right(ask()) or None, "an answer that is right")
    return ask()


def panels_without_data(job: Job, server: Prometheus) -> dict[str, str]:
    """Asks every query until each has given a number once; feeds the job meanwhile."""
    missing = panel_queries(job="sparkinfer", name=f"{NAME}|{GPU_NAME}", __rate_interval="10s")

    def all_seen() -> bool | None:
        assert job.process.poll() is None, job.log
        if told_by(get(job.page))[0] == job.waves * PHOTOS_A_WAVE:
            job.add_photos()
        for title, query in list(missing.items()):
            if any(math.isfinite(value) for value in server.values(query)):
                del missing[title]
        return not missing or None

    with contextlib.suppress(TimeoutError):
        wait_for(all_seen, "data behind every panel", WATCH_SECONDS)
    return missing


def settled_page(url: str, files: int) -> str | None:
    """The page, once every row is committed: until then it tells of rows that the table does not have yet."""
    page = get(url)
    return page if rows_with_latency(page) == files else None


def rows_with_latency(page: str) -> float:
    """Rows whose way from arrival to commit is known."""
    (count,) = re.findall(r"^sparkinfer_row_latency_seconds_count\{.*\} (\S+)$", page, re.MULTILINE)
    return float(count)


def variable_query() -> tuple[str, str]:
    """Series and label of the dashboard's variable of job names."""
    (query,) = [v["query"]["query"] for v in DASHBOARD["templating"]["list"] if v["type"] == "query"]
    found = re.fullmatch(r"label_values\((.+), (\w+)\)", query)
    assert found
    return found[1].replace("$job", "sparkinfer"), found[2]


NAMES_OF, NAMES_LABEL = variable_query()


def test_every_panel_has_data_while_a_job_runs(watched):
    assert watched.missing == {}


def test_the_dashboard_offers_the_jobs_that_run(watched):
    assert NAMES_LABEL == "name"
    assert sorted(watched.names) == [GPU_NAME, NAME]


def test_every_scrape_job_works(watched):
    assert watched.targets == dict.fromkeys(["sparkinfer", "spark-executors", "spark-driver", "pushgateway"], True)


def test_every_alert_is_evaluated(watched):
    assert watched.rules == dict.fromkeys(ALERTS, "ok")


def test_counters_are_the_tables_while_the_job_waits(watched):
    rows, errors = watched.expected
    assert rows == watched.files
    assert sum(errors.values()) == watched.files / 9
    assert told_by(watched.page) == watched.expected


def test_counters_are_the_tables_when_the_job_has_ended(watched):
    assert watched.status == 0
    assert told_by(watched.pushed, job=PUSHED_JOB, name=NAME) == watched.expected
    assert watched.scraped == [watched.expected[0]]


def test_promtool_likes_the_page(watched):
    command = ["promtool", "check", "metrics"]
    answer = subprocess.run(command, input=watched.page.encode(), capture_output=True, check=False)
    assert (answer.returncode, answer.stdout, answer.stderr) == (0, b"", b"")


def test_latencies_are_those_of_the_rows(watched):
    (seconds,) = re.findall(r"^sparkinfer_row_latency_seconds_sum\{.*\} (\S+)$", watched.page, re.MULTILINE)
    assert rows_with_latency(watched.page) == watched.files
    # A snapshot takes some tenths of a second, and no file is older than the test.
    assert 0.01 * watched.files < float(seconds) < (START_SECONDS + WATCH_SECONDS) * watched.files
