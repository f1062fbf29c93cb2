"""What a kill of the driver costs a job with snapshots: rows and bytes done again, and where its time goes.

    python -m tests.benchmarks.resume_kill [--rows 240] [--snapshot 40] [--at 0.5]

One run is left alone; one is killed (SIGKILL for the driver and all below it) when the model has seen so much of the
input, and started again by the same command. The model logs what it sees; Spark's event log says how many bytes each
finished task has read. Exit status 1 when the table differs from the undisturbed one, when a finished snapshot was
read again, or when more than one snapshot was done again.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from sparkinfer.driver.session import find_java
from tests.chaos.kill_calls import Calls
from tests.chaos.kill_job import Job, compare, rows_of
from tests.images import noise

__all__ = ["main"]

_ENTRY = Path(__file__).parents[2] / "jobs" / "batch_infer.py"
_CONF = {"spark.ui.enabled": "false", "spark.eventLog.enabled": "true", "spark.eventLog.compress": "false"}
_CONF["spark.eventLog.rolling.enabled"] = "false"
_LOOK_SECONDS = 0.02
_EVERYWHERE = 0
"""No process: executors of a local master are below the driver, and are told from it by nobody."""


@dataclass(frozen=True)
class _Start:
    """One start of the driver.

    Attributes:
        seen: rows that the model saw.
        first: seconds from the start until it saw the first one.
        redone: seconds from then on until it had seen so many rows as were to be done again.
        seconds: until the driver ended.
    """

    seen: int
    first: float
    redone: float
    seconds: float


def main(arguments: list[str] | None = None) -> int:
    """Runs both and prints the figures."""
    parser = argparse.ArgumentParser(
        prog="tests.benchmarks.resume_kill", description="What a kill of the driver costs."
    )
    parser.add_argument("--rows", type=int, default=240)
    parser.add_argument("--snapshot", type=int, default=40, help="files in one snapshot")
    parser.add_argument("--at", type=float, default=0.5, help="share of the rows that the model has seen before")
    parser.add_argument("--latency", type=float, default=0.3, help="seconds of the model for four images")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="sparkinfer-", ignore_cleanup_errors=True) as folder:
        return _measure(Path(folder), options)


def _measure(work: Path, options: argparse.Namespace) -> int:
    each = _write_photos(work / "photos", options.rows)
    total = each * options.rows
    calm = Job(work / "undisturbed", work / "photos", options.snapshot, options.latency)
    calm.write("local[2]")
    undisturbed = _start(calm, Calls(calm.calls))
    killed = Job(work / "killed", work / "photos", options.snapshot, options.latency)
    killed.write("local[2]")
    calls = Calls(killed.calls)
    first = _start(killed, calls, stop_at=int(options.at * options.rows))
    finished = sum(json.loads(mark.read_text())["rows"] for mark in (Path(killed.checkpoint) / "done").iterdir())
    before = {path.name for path in killed.events.iterdir()}
    second = _start(killed, calls, again=first.seen - finished)
    read = sum(_bytes_read(path) for path in killed.events.iterdir() if path.name not in before)
    again = first.seen + second.seen - undisturbed.seen
    difference = compare(rows_of(killed.output), rows_of(calm.output))
    print(
        f"{options.rows:,} files of {each:,} bytes, {options.snapshot} in a snapshot; driver killed when the model had "
        f"seen {first.seen} rows, {finished} of them in finished snapshots\n"
        f"rows done again:  {again} = {again / options.snapshot:.2f} of a snapshot\n"
        f"bytes read again: {again * each:,} = {again / options.snapshot:.2f} of a snapshot's "
        f"{options.snapshot * each:,}\n"
        f"bytes read by the second start: {read:,}; {total - finished * each:,} were in no finished snapshot\n"
        f"seconds of the second start: {second.first:.1f} until its first batch (undisturbed {undisturbed.first:.1f}), "
        f"then {second.redone:.1f} until it was as far as the first; both starts {first.seconds + second.seconds:.1f}, "
        f"undisturbed {undisturbed.seconds:.1f}\n"
        f"lost {difference.lost}, doubled {difference.doubled}, different {difference.different}"
    )
    # Spark counts what its tasks read of the ledger, too: less than any snapshot has.
    beyond = read - (total - finished * each)
    is_right = difference.total == 0 and 0 <= beyond < options.snapshot * each and again <= options.snapshot
    return 0 if is_right else 1


def _write_photos(folder: Path, rows: int) -> int:
    """Files of equal length, which it returns: whatever follows a picture's end is not looked at."""
    folder.mkdir()
    pictures = [_jpeg(noise((320, 240), seed)) for seed in range(8)]
    length = max(map(len, pictures))
    for number in range(rows):
        (folder / f"{number:05d}.jpg").write_bytes(pictures[number % len(pictures)].ljust(length, b"\0"))
    return length


def _jpeg(picture: Image.Image) -> bytes:
    file = io.BytesIO()
    picture.save(file, "JPEG")
    return file.getvalue()


def _start(job: Job, calls: Calls, stop_at: int | None = None, again: int = 0) -> _Start:
    """Runs the command to its end, or until the model has seen so many rows; `again`: see `_Start.redone`."""
    settings = {**_CONF, "spark.eventLog.dir": job.events.as_uri()}
    options = [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    environment = {
        **os.environ,
        "JAVA_HOME": str(find_java()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_SUBMIT_ARGS": shlex.join([*options, "pyspark-shell"]),
    }
    began, seen, first, redone = time.monotonic(), 0, 0.0, 0.0
    with (job.folder / "driver.log").open("ab") as log:
        driver = subprocess.Popen(
            [sys.executable, _ENTRY, job.file], stdout=log, stderr=log, env=environment, start_new_session=True
        )
    try:
        while driver.poll() is None:
            seen += calls.look(_EVERYWHERE).rows
            first = first or (time.monotonic() - began if seen > _INSPECTED else 0.0)
            redone = redone or (time.monotonic() - began - first if first and seen >= _INSPECTED + again else 0.0)
            if stop_at is not None and seen >= stop_at:
                break
            time.sleep(_LOOK_SECONDS)
    finally:
        if driver.poll() is None:
            os.killpg(driver.pid, signal.SIGKILL)
        status = driver.wait()
    seen += calls.look(_EVERYWHERE).rows
    if status != (0 if stop_at is None else -signal.SIGKILL):
        raise SystemExit(f"the driver ended with {status}:\n{(job.folder / 'driver.log').read_text()[-3000:]}")
    return _Start(seen - _INSPECTED, first, redone, time.monotonic() - began)


_INSPECTED = 2
"""Rows that every start gives the model to look at it, before Spark is there."""


def _bytes_read(events: Path) -> int:
    """Input of all tasks that ended."""
    lines = map(json.loads, events.read_text("utf-8").splitlines())
    ends = (line for line in lines if line["Event"] == "SparkListenerTaskEnd")
    return sum(end["Task Metrics"]["Input Metrics"]["Bytes Read"] for end in ends if end.get("Task Metrics"))


if __name__ == "__main__":
    sys.exit(main())
