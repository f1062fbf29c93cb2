"""Runs the contestants: every round runs each of them once, alone on the machine, in shuffled order."""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

import psutil

from tests.benchmarks.contestants.job import Job, Mark
from tests.benchmarks.memory import PeakMemory
from tests.benchmarks.roster import Contestant

__all__ = ["Outcome", "Run", "run_rounds"]

log = logging.getLogger(__name__)

TIMEOUT = 3600
"""Seconds for one contestant's process."""

PEER_ENVIRONMENT = {
    # Nobody's usage is reported from a benchmark.
    "RAY_USAGE_STATS_ENABLED": "0",
    "DAFT_ANALYTICS_ENABLED": "0",
    "DO_NOT_TRACK": "1",
    "DAFT_PROGRESS_BAR": "0",
}


@dataclass(frozen=True)
class Run:
    """What one process did.

    Attributes:
        first: seconds from the process's launch to the end of its first job.
        warm: seconds of a later job in the same session: the median.
        peak: bytes; largest sum of proportional memory over the process tree.
        exit_status: of the process; not 0 when it crashed after its jobs were done.
    """

    first: float
    warm: float
    peak: int
    exit_status: int = 0

    def __str__(self) -> str:
        figures = f"first {self.first:6.1f} s   warm {self.warm:6.1f} s   peak {self.peak / 1e9:5.2f} GB"
        return f"{figures}   exit status {self.exit_status} after its jobs" if self.exit_status else figures


@dataclass
class Outcome:
    """A contestant's runs, one per round, the outputs of all their jobs, and why it stopped taking part."""

    runs: list[Run] = field(default_factory=list)
    outputs: list[Path] = field(default_factory=list)
    failed: str | None = None


def run_rounds(
    contestants: Sequence[Contestant],
    job: Job,
    *,
    rounds: int,
    seed: int,
    scratch: Path,
    command: Callable[[Contestant, Path], list[str]],
) -> dict[str, Outcome]:
    """Runs all rounds. A contestant that fails once is left out from then on; the others go on.

    Args:
        job: the same for all; `output` is set here.
        scratch: folder for outputs and logs.
        command: a contestant's command line for a job file.
    """
    outcomes = {contestant.name: Outcome() for contestant in contestants}
    order = list(contestants)
    shuffle = random.Random(seed).shuffle
    for number in range(1, rounds + 1):
        shuffle(order)
        for contestant in order:
            outcome = outcomes[contestant.name]
            if outcome.failed:
                continue
            folder = scratch / f"{contestant.name}-{number}"
            shutil.rmtree(folder, ignore_errors=True)
            (folder / "output").mkdir(parents=True)
            result = _run(command(contestant, folder / "job.json"), replace(job, output=str(folder / "output")), folder)
            log.info("round %d  %-18s %s", number, contestant.name, result)
            if isinstance(result, Run):
                outcome.runs.append(result)
                outcome.outputs += [folder / "output" / str(index) for index in range(job.jobs)]
            else:
                outcome.failed = result
    return outcomes


def _run(command: list[str], job: Job, folder: Path) -> Run | str:
    """Runs one contestant to its end: its figures, or why there are none."""
    job.save(folder / "job.json")
    with (folder / "log.txt").open("wb") as output:
        launched = time.monotonic()
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=_environment(os.environ, python=command[0]),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with PeakMemory(process.pid) as memory:
            try:
                status: int | None = process.wait(TIMEOUT)
            except subprocess.TimeoutExpired:
                status = None
        _end(process.pid, memory.stragglers())
        process.wait()
    marks = Mark.read(job.marks)
    if status is None:
        return f"failed: not done after {TIMEOUT} s"
    if len(marks) < job.jobs:
        return f"failed: exit status {status}: {_last_error(folder / 'log.txt')}"
    first, warm = marks[0].ended - launched, median(mark.ended - mark.started for mark in marks[1:])
    return Run(first, warm, memory.peak, status)


def _environment(current: Mapping[str, str], *, python: str) -> dict[str, str]:
    """This process's environment, with the contestant's Python for Spark's workers and this checkout to import from."""
    kept = {key: value for key, value in current.items() if key not in ("SPARK_HOME", "SPARK_CONF_DIR", "VIRTUAL_ENV")}
    root = str(Path(__file__).resolve().parents[2])
    return kept | PEER_ENVIRONMENT | {"PYTHONPATH": root, "PYSPARK_PYTHON": python, "PYSPARK_DRIVER_PYTHON": python}


def _end(session: int, stragglers: list[psutil.Process]) -> None:
    """Ends what a contestant left running, so that it does not slow the next one."""
    with suppress(ProcessLookupError):
        os.killpg(session, signal.SIGKILL)
    for process in stragglers:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(stragglers, timeout=10)


def _last_error(path: Path) -> str:
    """The line of a log that says most: the last one that names an error, or the last one."""
    lines = [line.strip() for line in path.read_text("utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line or "Exception" in line]
    return (errors or lines or ["no output"])[-1][:300]
