"""What watching a job costs: live figures, metrics page and report, against none of them.

    python -m tests.benchmarks.watching --images PARQUET [--rounds 3]

One session and one warm-up job; then every round runs both, in turn who is first. Prints seconds, and the ratios inside
the rounds. Parquet needs `content` and `path` columns, such as `make bench` leaves under build/bench/images.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from sparkinfer.core.spec import JobSpec
from sparkinfer.driver.job import run_job
from tests.benchmarks.contestants.spark_session import SPARK_CONF

MODEL = Path("build/demo/efficientnet_lite0.onnx")
UNWATCHED: dict[str, Any] = {"progress": {"live": False}}


def main() -> None:
    """Runs the rounds."""
    parser = argparse.ArgumentParser(prog="tests.benchmarks.watching")
    parser.add_argument("--images", type=Path, required=True, help="folder of Parquet files with image bytes")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sparkinfer-") as folder:
        work = Path(folder)
        ways: dict[str, dict[str, Any]] = {
            "nothing": UNWATCHED,
            "live": {},
            "all": {"metrics": {"port": 0}, "report": str(work / "report")},
        }
        _run(given.images, work, ways["all"])
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(given.rounds):
            for way in list(ways) if number % 2 else reversed(ways):
                seconds[way].append(_run(given.images, work, ways[way]))
    for way in ways:
        ratios = [mine / bare for mine, bare in zip(seconds[way], seconds["nothing"], strict=True)]
        spread = f"({min(ratios):.3f} to {max(ratios):.3f})"
        print(f"{way:8} {median(seconds[way]):6.2f} s   {median(ratios):.3f} {spread} of a run that nobody watches")


def _run(images: Path, work: Path, blocks: dict[str, Any]) -> float:
    output = work / "out"
    shutil.rmtree(output, ignore_errors=True)
    spec = JobSpec.model_validate(
        {
            "source": {"parquet": str(images)},
            "model": {"path": str(MODEL), "device": "cpu"},
            "sink": {"path": str(output)},
            "spark": {"master": "local[2]", "conf": SPARK_CONF},
            **blocks,
        }
    )
    started = time.monotonic()
    run_job(spec)
    return time.monotonic() - started


if __name__ == "__main__":
    main()
