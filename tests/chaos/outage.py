"""HDFS goes away for a minute while a job works: `python -m tests.chaos.outage`.

Photographs, prediction table and checkpoint in a real HDFS, executors of a real standalone cluster with the settings of
conf/spark-defaults.cluster.conf. The name node, or every data node, is stopped (connections stay open, nobody answers)
or killed (connections are refused) while executors read, and comes back after so many seconds. Every row is compared
with the undisturbed run. Exit status 1 when a row is lost, doubled or different (a coded row of the outage's making is
a different one), when something half-written is left, or when the job ends otherwise than well. A job that the outage
has ended is started again by the same command, once, when HDFS is back: see "starts".
"""

from __future__ import annotations

import argparse
import itertools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from sparkinfer.driver.session import find_java
from tests.chaos.hdfs import HOWS, PARTS, Outage, hdfs, wait_until_back
from tests.chaos.kill_calls import Calls
from tests.chaos.kill_job import Difference, Job, Rows, compare, leftovers, make_photos, rows_of
from tests.chaos.kills import PROPERTIES, SMALL
from tests.chaos.standalone import Cluster
from tests.cluster.yarn import Hadoop

__all__ = ["LOCAL", "Case", "Outages", "Outcome", "main"]

ROOT = Path(__file__).parents[2]
_ENTRY = ROOT / "jobs" / "batch_infer.py"
LOCAL = "local[2,8]"
"""A Spark without a cluster, which tries a task as often as the shipped settings allow."""

_LOOK_SECONDS = 0.05
_HANG_SECONDS = 400.0
"""Beside the outage: an undisturbed run takes half a minute."""


@dataclass(frozen=True)
class Case:
    """One outage.

    Attributes:
        part, how: see `Outage`.
        snapshot: files in one snapshot; None for a plain job.
        at: rows that the model must have seen before.
        seconds: how long.
    """

    part: str
    how: str
    snapshot: int | None
    at: int
    seconds: float

    def __str__(self) -> str:
        kind = "plain job" if self.snapshot is None else f"snapshots of {self.snapshot}"
        return f"{self.part} {self.how} {self.seconds:g} s, {kind}"


@dataclass(frozen=True)
class Outcome:
    """What came of one.

    Attributes:
        status: exit status of the job, in the end.
        starts: how often the command was given: 2 where the outage has ended it.
        difference: against the undisturbed run.
        codes: error codes that are not as undisturbed, with their number.
        left: names of what was left half-written.
        longer: seconds, against the undisturbed run and the outage.
        again: rows that the model saw more than once.
        said: the end of the driver's log, where the job failed.
    """

    status: int
    starts: int
    difference: Difference
    codes: Counter[str]
    left: list[str]
    longer: float
    again: int
    said: str = ""

    @property
    def is_right(self) -> bool:
        """As if nothing had happened."""
        return self.status == 0 and self.difference.total == 0 and not self.left


class Outages:
    """Jobs with outages on one HDFS and one Spark, each against one undisturbed run.

    Args:
        hadoop: running.
        cluster: likewise; None for `LOCAL`.
        folder: for job files and logs; must not exist.
        originals: pictures to cut the input from.
        rows: of the input.
        latency: seconds of the model for four images.
        conf: Spark settings beside the shipped ones.
    """

    def __init__(
        self,
        hadoop: Hadoop,
        cluster: Cluster | None,
        folder: Path,
        originals: list[Image.Image],
        *,
        rows: int,
        latency: float,
        conf: dict[str, str] | None = None,
    ) -> None:
        self._hadoop, self._cluster, self._folder, self._latency = hadoop, cluster, folder, latency
        self._conf = {**SMALL, **(conf or {})}
        self._name = f"outages-{os.getpid()}"
        make_photos(originals, folder / "photos", rows)
        hadoop.dfs("-mkdir", "-p", f"/{self._name}")
        hadoop.dfs("-put", "-t", "16", folder / "photos", f"/{self._name}/photos")
        self._rows = rows
        self._undisturbed: dict[bool, _Run] = {}

    def run(self, case: Case) -> Outcome:
        """One job with an outage in it."""
        calm = self._calm(resumes=case.snapshot is not None)
        run = self._run(str(case).replace(" ", "-").replace(",", ""), case, case.snapshot is not None)
        codes = Counter(row[-1] for row in run.rows if row[-1]) - Counter(row[-1] for row in calm.rows if row[-1])
        longer = run.seconds - calm.seconds - case.seconds
        again = run.seen - calm.seen
        return Outcome(
            run.status,
            run.starts,
            compare(run.rows, calm.rows),
            codes,
            run.left,
            longer,
            again,
            run.said if run.status else "",
        )

    def _calm(self, *, resumes: bool) -> _Run:
        """The undisturbed run."""
        if resumes not in self._undisturbed:
            run = self._run("undisturbed-in-snapshots" if resumes else "undisturbed", None, resumes)
            assert run.status == 0, run.said
            assert len({path for path, *_ in run.rows}) == len(run.rows) == self._rows, len(run.rows)
            self._undisturbed[resumes] = run
        return self._undisturbed[resumes]

    def _run(self, name: str, case: Case | None, resumes: bool) -> _Run:
        place = self._folder / name
        there = f"{self._hadoop.name_node}/{self._name}"
        snapshot = (case.snapshot if case else None) or 20
        job = _HdfsJob(place, Path("photos"), snapshot if resumes else None, self._latency, there, name)
        job.write(self._cluster.url if self._cluster else LOCAL)
        began = time.monotonic()
        driver = self._start(job)
        calls, seen, outage, until = Calls(job.calls), 0, None, 0.0
        executors_beside = driver.pid if self._cluster else 0  # else they are below the driver
        try:
            while driver.poll() is None:
                seen += calls.look(executors_beside).rows
                if case and not until and seen >= case.at:
                    outage = Outage(self._hadoop, case.part, case.how)
                    outage.begin()
                    until = time.monotonic() + case.seconds
                if outage and time.monotonic() >= until:
                    outage.end()
                    outage = None
                if time.monotonic() > began + _HANG_SECONDS + (case.seconds if case else 0):
                    break
                time.sleep(_LOOK_SECONDS)
        finally:
            if driver.poll() is None:
                os.killpg(driver.pid, signal.SIGKILL)
                driver.wait()
            if outage:
                outage.end()
        assert not case or until, f"the job was done before the outage began; see {job.folder}"
        seconds = time.monotonic() - began
        starts = 1
        if case:
            wait_until_back(self._hadoop)
            if driver.returncode:  # as a person would, once the file system is back
                driver = self._start(job)
                starts += 1
                try:
                    driver.wait(_HANG_SECONDS)
                finally:
                    driver.kill()
                    driver.wait()
        seen += calls.look(executors_beside).rows
        said = (job.folder / "driver.log").read_text("utf-8", errors="replace")[-4000:]
        rows, left = self._fetch(job) if driver.returncode == 0 else ([], [])
        return _Run(driver.returncode, starts, rows, left, seen, seconds, said)

    def _start(self, job: Job) -> subprocess.Popen[bytes]:
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": job.events.as_uri(),
            **self._conf,
        }
        options = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
        submit = shlex.join(["--properties-file", str(PROPERTIES), *options, "pyspark-shell"])
        environment = self._cluster.environment() if self._cluster else _local_environment()
        with (job.folder / "driver.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, _ENTRY, job.file],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment | {"PYSPARK_SUBMIT_ARGS": submit, "HADOOP_CONF_DIR": str(self._hadoop.folder / "conf")},
                start_new_session=True,
            )

    def _fetch(self, job: _HdfsJob) -> tuple[Rows, list[str]]:
        """The table out of HDFS, and what is beside it."""
        copy = job.folder / "copy"
        self._hadoop.dfs("-get", f"{job.there}/{job.name}", copy)
        found = rows_of(copy / "predictions"), leftovers(copy / "predictions")
        shutil.rmtree(copy)
        return found


def _local_environment() -> dict[str, str]:
    return {**os.environ, "JAVA_HOME": str(find_java()), "SPARK_LOCAL_IP": "127.0.0.1", "LC_ALL": "C.UTF-8"}


@dataclass(frozen=True)
class _Run:
    status: int
    starts: int
    rows: Rows
    left: list[str]
    seen: int
    seconds: float
    said: str


@dataclass(frozen=True)
class _HdfsJob(Job):
    """The job of the kill campaign with input, output and checkpoint in HDFS.

    Attributes:
        there: hdfs://address/folder
        name: of its folder there.
    """

    there: str = ""
    name: str = ""

    @property
    def source(self) -> str:
        return f"{self.there}/{self.photos.name}"

    @property
    def sink(self) -> str:
        return f"{self.there}/{self.name}/predictions"

    @property
    def checkpoint(self) -> str:
        return f"{self.there}/{self.name}/check"


def main(arguments: list[str] | None = None) -> int:
    """Runs every kind of outage and prints a table."""
    parser = argparse.ArgumentParser(description="HDFS goes away and comes back while a job works.")
    parser.add_argument("--seconds", type=float, default=60, help="how long it is away")
    parser.add_argument("--rows", type=int, default=120)
    parser.add_argument("--at", type=float, default=0.4, help="share of the rows that the model has seen before")
    parser.add_argument("--snapshot", type=int, default=20, help="files in one snapshot")
    parser.add_argument("--latency", type=float, default=0.6, help="seconds of the model for four images")
    parser.add_argument("--images", type=Path, default=ROOT / "build" / "demo" / "images", help="to cut the input from")
    parser.add_argument("--only", default="", help="run the cases whose name holds this text")
    parser.add_argument("--local", action="store_true", help="no executors but the driver: quicker")
    parser.add_argument("--keep", type=Path, help="folder for job files and logs; a temporary one by default")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="one more Spark setting")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    cases = [
        case
        for part, how, snapshot in itertools.product(PARTS, HOWS, (given.snapshot, None))
        if given.only in str(case := Case(part, how, snapshot, int(given.at * given.rows), given.seconds))
    ]
    with (
        tempfile.TemporaryDirectory(prefix="sparkinfer-outage-", ignore_cleanup_errors=True) as temporary,
        hdfs() as hadoop,
        nullcontext() if given.local else Cluster(Path(temporary) / "cluster", PROPERTIES) as cluster,
    ):
        folder = given.keep or Path(temporary)
        originals = [Image.open(path) for path in sorted(given.images.iterdir())]
        outages = Outages(
            hadoop,
            cluster,
            folder / "jobs",
            originals,
            rows=given.rows,
            latency=given.latency,
            conf=dict(setting.split("=", 1) for setting in given.conf),
        )
        print(f"| {' | '.join(_HEAD)} |\n|{'---|' * len(_HEAD)}", flush=True)
        outcomes = []
        for case in cases:
            outcome = outages.run(case)
            outcomes.append(outcome)
            print(_line(case, outcome), flush=True)
            if outcome.said:
                print(outcome.said, file=sys.stderr, flush=True)
    return 0 if all(outcome.is_right for outcome in outcomes) else 1


_HEAD = (
    *("outage", "exit status", "starts", "lost", "doubled", "different", "codes of its making", "left", "s longer"),
    "rows seen again",
)


def _line(case: Case, outcome: Outcome) -> str:
    difference = outcome.difference
    codes = ", ".join(f"{count} {code}" for code, count in outcome.codes.items()) or "none"
    cells = [case, outcome.status, outcome.starts, difference.lost, difference.doubled, difference.different, codes]
    cells += [len(outcome.left), f"{outcome.longer:.1f}", outcome.again]
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    sys.exit(main())
