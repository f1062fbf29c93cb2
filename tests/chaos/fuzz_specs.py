"""Mutated jobs through the command line, up to where Spark would start: `python -m tests.chaos.fuzz_specs`.

Every one must be taken (all checks before Spark passed) or refused with exit status 2 and a message that fits on a
screen, names a key, a line or the file, and shows no stack trace. Prints the seed; `--seed N --only CASE` runs one
case again and shows it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import random
import re
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from sparkinfer import cli
from sparkinfer.core.errors import SparkInferError
from sparkinfer.core.spec import JobSpec
from tests.chaos.spec_mutations import mutated_job, mutated_sets

__all__ = ["Outcome", "case", "complaint", "run_case", "up_to_spark"]

COLUMNS, ROWS = 80, 24
"""A terminal's screen."""

MEMORY = 6 << 30
"""Bytes of address space: a job file that takes more is a finding, and not the end of this machine."""

_NAMES_SOMETHING = re.compile(rf"\b(?:{'|'.join(JobSpec.model_fields)})\b|\bline \d+|job\.yaml|--set|--\w+")


class ReachedSparkError(SparkInferError):
    """Stands for a SparkSession: the job was taken."""

    exit_status = 0


@dataclass(frozen=True)
class Outcome:
    """What the command did with one case.

    Attributes:
        status: exit status; 0 when the job was taken.
        text: all that it printed.
    """

    status: int
    text: str
    seconds: float


def good_jobs(folder: Path) -> list[dict[str, Any]]:
    """Jobs with nothing wrong, of all kinds of blocks; their model and images are there."""
    model = {"path": str(folder / "m.fake"), "labels": str(folder / "labels.txt"), "version": "3", "device": "auto"}
    return [
        {
            "name": "photos",
            "source": {"images": [str(folder / "photos")], "keep": ["length"], "where": "length > 1", "limit": 10},
            "model": {**model, "options": {"threads": 2}, "providers": ["cpu"]},
            "preprocess": {"preset": "imagenet", "resize": 256, "crop": [224, 224], "mean": [0.5, 0.5, 0.5]},
            "postprocess": {"activation": "softmax", "top_k": 3},
            "batch": {"size": "auto", "max_bytes": 16777216},
            "engine": "arrow",
            "sharding": "auto",
            "sink": {
                "path": str(folder / "out"),
                "mode": "overwrite",
                "partition_by": ["label"],
                "options": {"a": "b"},
            },
            "errors": {"max_fraction": 0.01, "max_rows": 5, "row_timeout": "60s"},
            "resume": {"checkpoint": str(folder / "checkpoint"), "snapshot_every": "1000 batches"},
            "report": str(folder / "report"),
            "spark": {"master": "local[1]", "conf": {"spark.driver.memory": "1g", "spark.ui.enabled": False}},
        },
        {
            "source": {"query": "SELECT * FROM photos", "content_column": "image", "sample": 0.5, "seed": 1},
            "model": {"path": str(folder / "m.fake")},
            "preprocess": "imagenet",
            "sink": {"table": "db.predictions", "format": "parquet"},
            "spark": {"master": "local[1]"},
        },
    ]


@contextlib.contextmanager
def up_to_spark() -> Iterator[Path]:
    """A folder with a model and images, made the working folder, and a driver that stops where it wants a session."""
    from sparkinfer.driver import job

    before = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="sparkinfer-fuzz-") as name:
        folder = Path(name)
        (folder / "m.fake").write_text('{"num_classes": 3}')
        (folder / "labels.txt").write_text("a\nb\nc\n")
        (folder / "photos").mkdir()
        (folder / "photos" / "a.jpg").write_bytes(b"\xff\xd8\xff")
        reached = ReachedSparkError("the job was taken")
        os.chdir(folder)
        try:
            with (
                # The model is looked at in a process of its own, with or without Spark: not what is tried here.
                mock.patch.object(job, "_is_local", return_value=False),
                mock.patch.object(job, "get_session", side_effect=reached),
                mock.patch.object(tempfile, "tempdir", name),
                mock.patch.dict(os.environ, {"NO_COLOR": "1", "COLUMNS": str(COLUMNS)}),
            ):
                yield folder
        finally:
            os.chdir(before)


def case(seed: int, number: int, folder: Path) -> tuple[bytes, list[str]]:
    """A job file and `--set` texts; the same for the same seed and number."""
    rng = random.Random(f"{seed}/{number}")
    job = rng.choice(good_jobs(folder))
    sets = mutated_sets(rng, job)
    return mutated_job(rng, job), sets


def run_case(content: bytes, sets: list[str], folder: Path) -> Outcome:
    """Gives a job file and `--set` texts to `sparkinfer run`."""
    (folder / "job.yaml").write_bytes(content)
    args = ["run", "job.yaml", *(arg for text in sets for arg in ("--set", text))]
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True)
    start = time.perf_counter()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        status = cli.main(args)
    seconds = time.perf_counter() - start
    return Outcome(status, printed.buffer.getvalue().decode(), seconds)


def complaint(outcome: Outcome) -> str | None:
    """What is wrong with the way a case was treated; None when nothing is."""
    if outcome.status not in {0, 2}:
        return f"exit status {outcome.status}"
    if "Traceback" in outcome.text or 'File "' in outcome.text:
        return "a stack trace"
    if outcome.status == 0:
        return None
    rows = sum(max(1, -(-len(line) // COLUMNS)) for line in outcome.text.splitlines())
    if rows > ROWS:
        return f"a message of {rows} rows"
    if not outcome.text.rstrip("\n").replace("\n", "").isprintable():
        return "control characters on the terminal"
    return None if _NAMES_SOMETHING.search(outcome.text) else "names neither key nor line"


def main() -> int:
    """Runs all cases; the exit status is 1 when one was treated wrongly."""
    parser = argparse.ArgumentParser(description="Mutated jobs through the command line.")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--only", type=int, help="run this case alone, and show it")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    wrong = taken = 0
    slowest = (0.0, 0)
    with up_to_spark() as folder:
        for number in range(given.count) if given.only is None else [given.only]:
            content, sets = case(given.seed, number, folder)
            outcome = run_case(content, sets, folder)
            taken += outcome.status == 0
            slowest = max(slowest, (outcome.seconds, number))
            found = complaint(outcome)
            wrong += found is not None
            if found is not None or given.only is not None:
                print(f"--- case {number}: {found or 'right'}\n{outcome.text[:3000]}")
            if given.only is not None:
                print(f"--- job.yaml\n{content[:3000]!r}\n--- --set\n{sets!r:.3000}")
    print(
        f"seed {given.seed}: {given.count:,} jobs, {taken:,} taken, {given.count - taken - wrong:,} refused with exit "
        f"status 2 and a message of one screen, {wrong:,} treated wrongly; slowest {slowest[0]:.2f} s (case "
        f"{slowest[1]}), peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
