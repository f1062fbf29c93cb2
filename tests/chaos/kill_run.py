"""One run of the job with kills in it: the same command again and again until it ends by itself."""

from __future__ import annotations

import contextlib
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.kill_calls import Calls
from tests.chaos.kill_events import Tasks
from tests.chaos.kill_job import Job
from tests.chaos.standalone import Cluster, Executor, Node

__all__ = ["DRIVER_KINDS", "KINDS", "Kill", "Run", "RunFailedError", "Strike", "plan_kills"]

DRIVER_KINDS = ("driver", "machine")
KINDS = {
    "worker": 4,
    "daemon": 1,
    "executor": 3,
    "standalone": 1,
    "node": 2,
    "freeze": 2,
    "driver": 2,
    "machine": 1,
}
"""A Python worker; the daemon that forks them; an executor JVM; a Worker JVM alone; a Worker with all below it; the
same, silent for a while; the driver (all of it, its Python, or its JVM); the driver and every node at once. With how
often each is chosen: after a driver's death nothing happens for long."""

LOOK_SECONDS = 0.05
RUN_SECONDS = 600.0
"""A run that takes longer hangs: an undisturbed one takes some 20 s."""

_ENTRY = Path(__file__).parents[2] / "jobs" / "batch_infer.py"
_AT_WORK = 0.8
"""Share of kills that wait for work to be there; the others fall where they fall, often into a start."""
_GAP_SECONDS = (0.0, 1.5)
_DRIVER_END_SECONDS = 20.0
"""A driver without its JVM needs a while to see that."""
_RESTART_SECONDS = (1.0, 6.0)
"""A node comes back after so long."""
_FREEZE_SECONDS = (4.0, 30.0)
"""Shorter and longer than the 12 s after which the shipped settings give a silent executor up."""


class RunFailedError(Exception):
    """The job ended, or did not end, as no kill explains."""


@dataclass(frozen=True)
class Kill:
    """One planned kill.

    Attributes:
        kind: of `KINDS`.
        at_work: begins to count when the model has had a batch since the kill before it; else at that kill.
        gap: seconds from then on.
        choice: which of the possible targets, in [0, 1).
        pause: seconds until a node is started again, or goes on.
    """

    kind: str
    at_work: bool
    gap: float
    choice: float
    pause: float


@dataclass
class Strike:
    """A kill that was made.

    Attributes:
        kind: of `KINDS`.
        at: seconds since the epoch.
        after: seconds since the run began.
        executors: application and id of what was hit.
        tasks_again: seconds until the tasks that were lost were started again; None when none was lost, or unknown.
        new_process: seconds until a Python worker that was not there before gave the model a batch; None: never.
        command: of a driver, seconds until its command was given again.
        first_task: of a driver, seconds until its first task was started: what the command needs by itself.
    """

    kind: str
    at: float
    after: float
    executors: list[tuple[str, str]] = field(default_factory=list)
    tasks_again: float | None = None
    new_process: float | None = None
    command: float | None = None
    first_task: float | None = None

    @property
    def recovery(self) -> float | None:
        """Seconds until work went on: of a driver, start-up included; of others, until their tasks ran elsewhere."""
        return self.new_process if self.kind in DRIVER_KINDS else self.tasks_again


def plan_kills(rng: random.Random, kinds: tuple[str, ...], count: int) -> list[Kill]:
    """Random kills for one run."""
    plan = []
    for kind in rng.choices(kinds, [KINDS[kind] for kind in kinds], k=count):
        pause = rng.uniform(*(_FREEZE_SECONDS if kind == "freeze" else _RESTART_SECONDS))
        plan.append(Kill(kind, rng.random() < _AT_WORK, rng.uniform(*_GAP_SECONDS), rng.random(), pause))
    return plan


class Run:
    """Starts the job, kills, starts it again.

    Args:
        cluster: running.
        job: written.
        properties: Spark's settings, a file.
        conf: more of them.
        plan: in order; those that the run is too short for are left out.

    Attributes:
        job: that runs.
        strikes: what was killed.
        starts: of the driver.
        rows: that the model has seen on the executors, those seen twice counted twice.
        seconds: from the first start to the end.
    """

    def __init__(self, cluster: Cluster, job: Job, properties: Path, conf: dict[str, str], plan: list[Kill]) -> None:
        self.strikes: list[Strike] = []
        self.starts = self.rows = 0
        self.seconds = 0.0
        self.job = job
        self._cluster, self._properties, self._conf = cluster, properties, conf
        self._plan = list(plan)
        self._last_kill = time.monotonic()
        self._first_batch: float | None = None
        self._due: list[tuple[float, Callable[[], None]]] = []
        self._driver: subprocess.Popen[bytes] | None = None
        self._driver_hit = False
        self._orphans: list[psutil.Process] = []
        self._calls = Calls(job.calls)

    def run(self) -> None:
        """Returns when the job has ended with exit status 0, and every node is up again.

        Raises:
            RunFailedError: with the end of the driver's log.
        """
        began = time.monotonic()
        try:
            self._start_driver()
            while not self._has_ended():
                if time.monotonic() > began + RUN_SECONDS:
                    raise RunFailedError(f"the job hangs:\n{self._log_end()}")
                self._look()
                self._do_due()
                if self._plan and self._is_time(self._plan[0]) and self._strike(self._plan[0], began):
                    self._plan.pop(0)
                    self._last_kill, self._first_batch = time.monotonic(), None
                time.sleep(LOOK_SECONDS)
            self.seconds = time.monotonic() - began
            self._look()
        finally:
            self._end_driver()
            self._do_due(everything=True)
        tasks = Tasks(self.job.events)
        for strike in self.strikes:
            waits = [tasks.recovery(app, executor, strike.at) for app, executor in strike.executors]
            strike.tasks_again = max((wait for wait in waits if wait is not None), default=None)
            if strike.kind in DRIVER_KINDS:
                strike.first_task = tasks.first_start(strike.at + (strike.command or 0.0), since=strike.at)

    # --- the driver ---------------------------------------------------------------------------------------------------

    def _start_driver(self) -> None:
        self.starts += 1
        self._driver_hit = False
        settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": self.job.events.as_uri(),
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
            **self._conf,
        }
        options = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
        arguments = ["--properties-file", str(self._properties), *options, "pyspark-shell"]
        environment = self._cluster.environment() | {"PYSPARK_SUBMIT_ARGS": shlex.join(arguments)}
        with self._log.open("ab") as log:
            self._driver = subprocess.Popen(
                [sys.executable, _ENTRY, self.job.file],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    @property
    def _log(self) -> Path:
        return self.job.folder / "driver.log"

    def _log_end(self) -> str:
        return self._log.read_text("utf-8", errors="replace")[-4000:]

    def _has_ended(self) -> bool:
        """Whether the job is done; starts the driver again where a kill has ended it."""
        assert self._driver is not None
        status = self._driver.poll()
        if status is None:
            return False
        if status == 0:
            return True
        if not self._driver_hit:
            raise RunFailedError(f"the driver ended with exit status {status}:\n{self._log_end()}")
        self._start_driver()
        for strike in self.strikes:
            if strike.kind in DRIVER_KINDS and strike.command is None:
                strike.command = time.time() - strike.at
        return False

    def _end_driver(self) -> None:
        """What is left of all drivers of this run: a JVM may outlive its Python for a while."""
        driver = self._driver
        if driver is not None and driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
        for process in self._orphans:
            with contextlib.suppress(psutil.Error):
                process.kill()

    def _kill_driver(self, choice: float) -> bool:
        """Kills all of it, or its Python alone, or its JVM alone."""
        driver = self._driver
        assert driver is not None
        below = psutil.Process(driver.pid).children(recursive=True)
        if choice < 0.5:
            os.killpg(driver.pid, signal.SIGKILL)
        elif choice < 0.75:
            self._orphans += below
            driver.kill()
        else:
            java = [child for child in below if child.name() == "java"]
            if not java:
                return False
            java[0].kill()
        self._driver_hit = True
        with contextlib.suppress(subprocess.TimeoutExpired):
            driver.wait(_DRIVER_END_SECONDS)
        return driver.returncode != 0

    # --- kills --------------------------------------------------------------------------------------------------------

    def _is_time(self, kill: Kill) -> bool:
        since = self._first_batch if kill.at_work else self._last_kill
        return since is not None and time.monotonic() >= since + kill.gap

    def _strike(self, kill: Kill, began: float) -> bool:
        """Makes a kill; False while there is nothing of the kind to kill."""
        nodes = [node for node in self._cluster.nodes if node.is_up]
        executors = {node: node.executors() for node in nodes}
        strike = Strike(kill.kind, time.time(), time.monotonic() - began)
        if kill.kind in DRIVER_KINDS:
            if not self._kill_driver(kill.choice if kill.kind == "driver" else 0.0):
                return False
            if kill.kind == "machine":
                for node in nodes:
                    self._kill_node(node, kill.pause)
        elif kill.kind in {"standalone", "node", "freeze"}:
            busy = [node for node in nodes if executors[node]]
            if not busy:
                return False
            node = _chosen(busy, kill.choice)
            strike.executors = [(executor.app, executor.id) for executor in executors[node]]
            if kill.kind == "freeze":
                node.freeze()
                self._later(kill.pause, node.thaw)
            else:
                self._kill_node(node, kill.pause, alone=kill.kind == "standalone")
        elif not self._kill_process(kill, [e for node in nodes for e in executors[node]], strike):
            return False
        self._look()  # what was done before the kill is no recovery
        self.strikes.append(strike)
        return True

    def _kill_process(self, kill: Kill, executors: list[Executor], strike: Strike) -> bool:
        """Kills one process of one executor."""
        of_kind = {"worker": Executor.workers, "daemon": Executor.daemons, "executor": lambda e: [e.process]}[kill.kind]
        targets = [(executor, process) for executor in executors for process in of_kind(executor)]
        if not targets:
            return False
        busy = [(executor, process) for executor, process in targets if self._calls.is_busy(process.pid)]
        executor, process = _chosen(busy or targets, kill.choice)
        strike.executors = [(executor.app, executor.id)]
        strike.at = time.time()
        try:
            process.kill()
        except psutil.Error:
            return False
        return True

    def _kill_node(self, node: Node, pause: float, *, alone: bool = False) -> None:
        if alone:
            node.kill_worker()
        else:
            node.kill_all()
        self._later(pause, node.start)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self._due.append((time.monotonic() + seconds, action))

    def _do_due(self, *, everything: bool = False) -> None:
        now = time.monotonic()
        due = [item for item in self._due if everything or item[0] <= now]
        self._due = [item for item in self._due if item not in due]
        for _, action in due:
            action()

    def _look(self) -> None:
        """Notes what the model has done since the last look."""
        assert self._driver is not None
        seen = self._calls.look(self._driver.pid)
        now = time.time()
        self.rows += seen.rows
        if seen.rows and self._first_batch is None:
            self._first_batch = time.monotonic()
        if seen.new_workers:
            for strike in self.strikes:
                if strike.new_process is None:
                    strike.new_process = now - strike.at


def _chosen(targets: list[Any], choice: float) -> Any:
    return targets[int(choice * len(targets))]
