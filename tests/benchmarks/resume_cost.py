"""What snapshots cost: one plain job, the ledger, and Spark's streaming, on the same table of Parquet files.

    python -m tests.benchmarks.resume_cost --images PHOTOS [--rows 2000] [--files 20] [--every 2] [--rounds 3]

Every round runs the three ways in one session, in shuffled order, after one warm-up job; each starts with an empty
output and a new checkpoint. Prints medians, ratios with their spread, and seconds for each snapshot.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq

from sparkinfer.core.spec import JobSpec
from sparkinfer.driver import resume
from sparkinfer.driver.job import run_job
from sparkinfer.driver.session import get_session

MODEL = Path("build/demo/efficientnet_lite0.onnx")
TABLE = "resume_cost"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the comparison. Returns 1 when an output lacks rows."""
    parser = argparse.ArgumentParser(prog="tests.benchmarks.resume_cost")
    parser.add_argument("--images", type=Path, required=True, help="folder of photographs")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--every", type=int, default=2, help="files in a snapshot")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="sparkinfer-") as folder:
        work = Path(folder)
        _write_input(options.images, work / "in", options.rows, options.files)
        return _compare(work, options)


def _write_input(photographs: Path, target: Path, rows: int, files: int) -> None:
    names = sorted(path for path in photographs.iterdir() if path.suffix.lower() in {".jpg", ".jpeg", ".png"})
    target.mkdir()
    for file in range(files):
        numbers = range(rows * file // files, rows * (file + 1) // files)
        contents = [names[number % len(names)].read_bytes() for number in numbers]
        table = pa.table({"path": [f"photo-{number:06d}" for number in numbers], "content": contents})
        pq.write_table(table, target / f"part-{file:04d}.parquet", compression="none")


def _compare(work: Path, options: argparse.Namespace) -> int:
    conf = {"spark.sql.warehouse.dir": str(work / "warehouse"), "spark.ui.enabled": "false"}
    ways: dict[str, dict[str, Any]] = {
        "plain job": {"source": {"parquet": str(work / "in")}},
        "ledger": {"source": {"parquet": str(work / "in")}, "every": options.every},
        "streaming": {"source": {"table": TABLE}, "every": options.every},
    }
    spark = get_session(_spec(work, "session", {"source": ways["plain job"]["source"]}, conf))
    spark.sql(f"CREATE TABLE {TABLE} USING parquet LOCATION '{work / 'in'}'")
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    _timed(work, "warm-up", ways["plain job"], conf)
    for number in range(options.rounds):
        order = list(ways)
        random.Random(number).shuffle(order)
        for way in order:
            # A table of plain files goes through the ledger by itself: here it is made to stream.
            with mock.patch.object(resume, "is_streamed", lambda *_, way=way: way == "streaming"):
                taken = _timed(work, f"{way}-{number}", ways[way], conf)
            rows = spark.read.parquet(str(work / f"{way}-{number}" / "out")).count()
            if rows != options.rows:
                print(f"{way}: {rows} rows of {options.rows}")
                return 1
            seconds[way].append(taken)
            print(f"round {number}  {way:10s} {taken:6.2f} s", flush=True)
    snapshots = -(-options.files // options.every)
    print(f"\n{options.rows:,} rows, {options.files} files, {snapshots} snapshots, {options.rounds} rounds")
    for way, times in seconds.items():
        ratios = sorted(own / plain for own, plain in zip(times, seconds["plain job"], strict=True))
        each = (median(times) - median(seconds["plain job"])) / snapshots
        print(
            f"{way:10s} {median(times):6.2f} s   x {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})   "
            f"{each:+.2f} s a snapshot"
        )
    return 0


def _timed(work: Path, name: str, way: dict[str, Any], conf: dict[str, str]) -> float:
    folder = work / name
    shutil.rmtree(folder, ignore_errors=True)
    started = time.monotonic()
    run_job(_spec(work, name, way, conf))
    return time.monotonic() - started


def _spec(work: Path, name: str, way: dict[str, Any], conf: dict[str, str]) -> JobSpec:
    resumed = {"checkpoint": str(work / name / "check"), "snapshot_every": f"{way.get('every', 1)} files"}
    return JobSpec.model_validate(
        {
            "source": way["source"],
            "model": {"path": str(MODEL), "device": "cpu"},
            "sink": {"path": str(work / name / "out")},
            "spark": {"conf": conf},
            **({"resume": resumed} if "every" in way else {}),
        }
    )


if __name__ == "__main__":
    sys.exit(main())
