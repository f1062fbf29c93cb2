"""Kills Spark's processes while it works, and compares every row with those of an undisturbed run.

    python -m tests.chaos.kills --kills 200 --seed 1        or: make chaos CHAOS_ARGS="--kills 20"

A real standalone cluster of two nodes with the settings of conf/spark-defaults.cluster.conf; speculation is on in every
other run. Exit status 1 when a row is lost, doubled or different, when something half-written is left in the output,
or when a run ends otherwise than well.
"""

from __future__ import annotations

import argparse
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from tests.chaos.kill_job import Difference, Job, Rows, compare, leftovers, make_photos, rows_of
from tests.chaos.kill_run import DRIVER_KINDS, KINDS, Run, RunFailedError, Strike, plan_kills
from tests.chaos.standalone import Cluster

__all__ = ["Campaign", "Result", "main", "table"]

ROOT = Path(__file__).parents[2]
PROPERTIES = ROOT / "conf" / "spark-defaults.cluster.conf"
_KILLS_A_RUN = (5, 10)
_PROMISED = {"executor", "standalone", "node", "freeze"}
PROMISED_SECONDS = 15.0
"""Until the tasks of a lost executor or node run elsewhere, with the shipped settings."""
_QUIET_SECONDS = 20.0
"""Executors whose driver is gone end within a few seconds."""

SMALL = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.ui.enabled": "false",
}
"""Not what the campaign is about: several JVMs on few cores."""

EAGER = {
    "spark.speculation": "true",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "200ms",
}
"""Speculation that copies nearly everything, so that two attempts at one task are often alive."""


@dataclass
class Result:
    """What came of one run.

    Attributes:
        strikes: the kills.
        difference: against the undisturbed run.
        left: names of what was left half-written.
        again: rows that the model saw more than once.
        only_drivers: no other kills were planned.
        failure: why the run did not end well.
    """

    strikes: list[Strike]
    difference: Difference
    left: list[str] = field(default_factory=list)
    again: int = 0
    only_drivers: bool = False
    failure: str | None = None

    @property
    def is_right(self) -> bool:
        """As if nothing had been killed."""
        return self.difference.total == 0 and not self.left and self.failure is None


class Campaign:
    """Runs with kills on one cluster, against one undisturbed run.

    Args:
        cluster: running.
        folder: for everything; must not exist.
        originals: pictures to cut the input from.
        rows: of the input.
        snapshot: files in one snapshot; None for plain jobs, which begin again when their driver is killed.
        latency: seconds of the model for four images.
        say: told a line for every run.
    """

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        originals: list[Image.Image],
        *,
        rows: int,
        snapshot: int | None,
        latency: float,
        say: Callable[[str], None],
    ) -> None:
        self.results: list[Result] = []
        self._cluster, self._folder, self._snapshot, self._latency, self._say = cluster, folder, snapshot, latency, say
        self._rows = rows
        make_photos(originals, folder / "photos", rows)
        undisturbed, run = self._run("undisturbed", {}, random.Random(0), tuple(KINDS), 0)
        self._expected: Rows = undisturbed
        self._seen_once = run.rows
        if len({path for path, *_ in undisturbed}) != rows:
            raise RunFailedError(f"the undisturbed run has {len(undisturbed):,} rows, not {rows:,}")
        say(f"undisturbed: {rows:,} rows in {run.seconds:.1f} s, {run.rows:,} of them seen by the model")

    def round(self, number: int, seed: str, kinds: tuple[str, ...], most: int) -> Result:
        """One run with up to `most` kills."""
        rng = random.Random(seed)
        speculation = number % 2 == 1
        only_drivers = number % 4 == 3 and "driver" in kinds
        chosen = ("driver",) if only_drivers else kinds
        count = min(most, 2 if only_drivers else rng.randint(*_KILLS_A_RUN))
        settings = EAGER if speculation else {}
        try:
            rows, run = self._run(f"run-{number}", settings, rng, chosen, count)
            failure = None
        except _KilledRunFailedError as error:
            rows, run, failure = error.rows, error.run, str(error.__cause__)
        result = Result(
            run.strikes,
            compare(rows, self._expected),
            leftovers(run.job.output),
            run.rows - self._seen_once,
            only_drivers,
            failure,
        )
        self.results.append(result)
        self._say(
            f"run {number} seed {seed} speculation {'on' if speculation else 'off'}: "
            f"{', '.join(_told(strike) for strike in run.strikes) or 'no kill'}; "
            f"{len(rows):,} rows in {run.seconds:.0f} s, "
            f"lost {result.difference.lost}, doubled {result.difference.doubled}, "
            f"different {result.difference.different}, seen again {result.again}"
            + (f", LEFT {result.left[:5]}" if result.left else "")
            + (f", FAILED {failure}" if failure else "")
        )
        return result

    def _run(
        self, name: str, settings: dict[str, str], rng: random.Random, kinds: tuple[str, ...], count: int
    ) -> tuple[Rows, Run]:
        job = Job(self._folder / name, self._folder / "photos", self._snapshot, self._latency)
        job.write(self._cluster.url)
        run = Run(self._cluster, job, PROPERTIES, {**SMALL, **settings}, plan_kills(rng, kinds, count))
        try:
            run.run()
        except RunFailedError as error:
            raise _KilledRunFailedError(rows_of(job.output) if job.output.exists() else [], run) from error
        finally:
            self._wait_for_quiet()
        return rows_of(job.output), run

    def _wait_for_quiet(self) -> None:
        """Until no executor is left: one that was frozen might still write."""
        until = time.monotonic() + _QUIET_SECONDS
        while time.monotonic() < until and any(node.is_up and node.executors() for node in self._cluster.nodes):
            time.sleep(0.1)


class _KilledRunFailedError(Exception):
    """A run that ended badly, with what it left."""

    def __init__(self, rows: Rows, run: Run) -> None:
        super().__init__()
        self.rows, self.run = rows, run


def _told(strike: Strike) -> str:
    recovery = strike.recovery
    return f"{strike.kind} at {strike.after:.1f} s" + (f" (+{recovery:.1f})" if recovery is not None else "")


def table(results: list[Result], snapshot: int | None) -> str:
    """The campaign in figures, as Markdown."""
    strikes = [strike for result in results for strike in result.strikes]
    lines = ["| killed | kills | time to recover, s: median | max | measured |", "|---|---|---|---|---|"]
    for kind in (*KINDS, "all"):
        of_kind = [strike for strike in strikes if kind in {strike.kind, "all"}]
        known = [strike.recovery for strike in of_kind if strike.recovery is not None]
        if of_kind:
            spread = f"{statistics.median(known):.1f} | {max(known):.1f}" if known else "- | -"
            lines.append(f"| {kind} | {len(of_kind)} | {spread} | {len(known)} |")
    lines += ["", *_promise(strikes), *_driver_lines(strikes)]
    differences = [result.difference for result in results]
    lines += [
        "",
        (
            f"{len(results)} runs, {len(strikes)} kills: lost {sum(d.lost for d in differences)}, "
            f"doubled {sum(d.doubled for d in differences)}, different {sum(d.different for d in differences)}, "
            f"left half-written {sum(len(result.left) for result in results)}, "
            f"runs that failed {sum(result.failure is not None for result in results)}"
        ),
        f"rows seen again by the model: {sum(result.again for result in results):,} in all",
    ]
    drivers = [result for result in results if result.only_drivers and result.strikes]
    if drivers:
        again = [result.again / len(result.strikes) for result in drivers]
        lines.append(
            f"rows seen again after a kill of the driver: median {statistics.median(again):.0f}, max {max(again):.0f} "
            f"({sum(len(r.strikes) for r in drivers)} kills in {len(drivers)} runs); "
            + (f"a snapshot has {snapshot} rows" if snapshot else "a plain job begins again")
        )
    return "\n".join(lines)


def _promise(strikes: list[Strike]) -> Iterator[str]:
    """Whether what was lost with an executor or a node was started elsewhere in time."""
    known = [strike.recovery for strike in strikes if strike.kind in _PROMISED and strike.recovery is not None]
    if known:
        late = sum(seconds > PROMISED_SECONDS for seconds in known)
        yield (
            f"tasks of lost executors and nodes: {len(known) - late} of {len(known)} started elsewhere within "
            f"{PROMISED_SECONDS:g} s"
        )


def _driver_lines(strikes: list[Strike]) -> Iterator[str]:
    """A driver's recovery by its parts, each since the kill."""
    drivers = [strike for strike in strikes if strike.kind in DRIVER_KINDS]
    parts = {
        "the same command is given again": [strike.command for strike in drivers],
        "its first task starts (the command's own start-up)": [strike.first_task for strike in drivers],
        "the model has its first batch": [strike.new_process for strike in drivers],
    }
    for what, waits in parts.items():
        known = [wait for wait in waits if wait is not None]
        if known:
            spread = f"median {statistics.median(known):.1f}, max {max(known):.1f}"
            yield f"seconds after a driver's death until {what}: {spread}"


def main(arguments: list[str] | None = None) -> int:
    """Runs the campaign and prints it."""
    parser = argparse.ArgumentParser(description="Random kills on a standalone cluster, compared row by row.")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000)
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--rows", type=int, default=240)
    parser.add_argument("--snapshot", type=int, default=60, help="files in one snapshot")
    parser.add_argument("--latency", type=float, default=0.15, help="seconds of the model for four images")
    parser.add_argument("--images", type=Path, default=ROOT / "build" / "demo" / "images", help="to cut the input from")
    parser.add_argument("--plain", action="store_true", help="a job without resume")
    parser.add_argument("--most-a-run", type=int, default=_KILLS_A_RUN[1], help="1: to see how each alone is recovered")
    parser.add_argument("--minutes", type=float, help="begin no run after so long")
    parser.add_argument("--keep", type=Path, help="folder for everything; a temporary one by default")
    given = parser.parse_args(arguments)
    kinds = tuple(given.kinds.split(","))
    unknown = set(kinds) - set(KINDS)
    if unknown:
        parser.error(f"unknown kind {min(unknown)!r}; allowed: {', '.join(KINDS)}")
    # Ended from outside, it ends its processes too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    print(f"seed {given.seed}, kinds {', '.join(kinds)}", flush=True)
    snapshot = None if given.plain else given.snapshot
    with tempfile.TemporaryDirectory(prefix="sparkinfer-kills-", ignore_cleanup_errors=True) as temporary:
        folder = given.keep or Path(temporary) / "campaign"
        with Cluster(folder / "cluster", PROPERTIES) as cluster:
            campaign = Campaign(
                cluster,
                folder / "jobs",
                [Image.open(path) for path in sorted(given.images.iterdir())],
                rows=given.rows,
                snapshot=snapshot,
                latency=given.latency,
                say=lambda line: print(line, flush=True),
            )
            try:
                _until_enough(campaign, given, kinds)
            finally:  # also when it was stopped
                print(table(campaign.results, snapshot), flush=True)
    return 0 if all(result.is_right for result in campaign.results) else 1


def _until_enough(campaign: Campaign, given: argparse.Namespace, kinds: tuple[str, ...]) -> None:
    began = time.monotonic()
    made = number = 0
    while made < given.kills and (given.minutes is None or time.monotonic() - began < given.minutes * 60):
        most = min(given.most_a_run, given.kills - made)
        result = campaign.round(number, f"{given.seed}-{number}", kinds, most)
        if result.failure is not None:
            return  # the next run would most likely fail as well
        made += len(result.strikes)
        number += 1


if __name__ == "__main__":
    sys.exit(main())
