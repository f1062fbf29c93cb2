"""Every kind of poison row through a whole job: `python -m tests.chaos.poison`.

Each job reads good images and some that end the process that decodes them, really; all in one partition. What comes
out is compared row by row with a run without poison. Prints a Markdown table; exit status 1 when a row is lost, doubled
or different, or when a job takes more than one attempt more than it has tasks.
"""

from __future__ import annotations

import argparse
import random
import shutil
import struct
import sys
import tempfile
import time
import zlib
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from sparkinfer.core.errors import SparkInferError
from sparkinfer.core.spec import JobSpec
from sparkinfer.driver.job import run_job
from sparkinfer.driver.session import get_session
from tests.chaos.memory_killer import MemoryKiller
from tests.executor import deadly
from tests.images import encode, noise, png_chunk
from tests.spark.attempts import failed_attempts
from tests.spark.models import fake_model_file

SIDE = 30_000
"""Pixels of the huge picture's sides: 900 MB in memory as grey, 3.6 GB as RGB."""

WORKER_MEMORY = "3g"
"""Address space of a Python worker, where it is limited."""

KILLED_AT = 800 << 20
"""Resident bytes of a Python worker at which it is killed as by the kernel: thrice what one takes here to run."""

RESULT = ("predicted_class_idx", "label", "confidence", "top_k", "error_code")


@dataclass(frozen=True)
class Kind:
    """One kind of poison.

    Attributes:
        image: the poison.
        rows: how many of them.
        codes: what they may come out as.
        conf: Spark settings of the session.
        preprocess: more keys of that block.
        killed_at: resident bytes at which a Python worker is killed from outside.
    """

    name: str
    image: bytes
    rows: int
    codes: tuple[str, ...] = ("WORKER_CRASHED",)
    conf: dict[str, str] = field(default_factory=dict)
    preprocess: dict[str, Any] = field(default_factory=dict)
    killed_at: int | None = None


def kinds() -> list[Kind]:
    """All of them; the ones that need a session of their own come last."""
    limited = {"spark.executor.pyspark.memory": WORKER_MEMORY}
    large = {"max_pixels": SIDE * SIDE}
    huge = huge_png(SIDE)
    return [
        Kind("SIGSEGV in the decoder", deadly.SEGV, 3),
        Kind("SIGABRT in the decoder", deadly.ABORT, 3),
        Kind("SIGKILL in the decoder", deadly.KILL, 3),
        Kind(f"memory, killed at {KILLED_AT >> 20} MiB", deadly.GROW, 3, killed_at=KILLED_AT),
        Kind("a decoder that waits for ever", deadly.HANG, 2, ("TIMEOUT",)),
        Kind("a decoder that hangs in native code", deadly.HOLD, 2, ("TIMEOUT",)),
        Kind("SIGSEGV, many in one partition", deadly.SEGV, 25),
        Kind(f"a PNG of {SIDE:,} x {SIDE:,}", huge, 1, ("TOO_MANY_PIXELS",), limited),
        Kind(f"the same, allowed, in {WORKER_MEMORY}", huge, 1, ("OUT_OF_MEMORY", "WORKER_CRASHED"), limited, large),
    ]


def huge_png(side: int) -> bytes:
    """A grey picture of zeros: less than a megabyte, and `side` squared bytes once it is decoded."""
    packer = zlib.compressobj(1)
    row = bytes(side + 1)
    data = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", data) + png_chunk(b"IEND", b"")


class Campaign:
    """Jobs over the same good images.

    Args:
        folder: to work in.
        good: images.
        model: block of the job file.
        preprocess: likewise.
        timeout_s: `errors.row_timeout`.
        seed: of the places of the poison.
    """

    def __init__(
        self,
        folder: Path,
        good: list[bytes],
        model: dict[str, Any],
        preprocess: dict[str, Any],
        timeout_s: float,
        seed: int,
    ) -> None:
        self._folder = folder
        self._good = [(f"good-{number:04}", image) for number, image in enumerate(good)]
        self._model = model
        self._preprocess = {**preprocess, "decoder": "tests.executor.deadly:decode"}
        self._timeout_s = timeout_s
        self._random = random.Random(seed)
        self._undisturbed: dict[str, Any] = {}

    def line(self, kind: Kind | None) -> tuple[list[str], list[str]]:
        """One job: a line of the table, and what was wrong."""
        rows = list(self._good)
        poison = {f"poison-{number:04}" for number in range(kind.rows if kind else 0)}
        for name in sorted(poison):
            rows.insert(self._random.randrange(len(rows) + 1), (name, kind.image if kind else b""))
        spec = self._spec(rows, kind)
        spark = _session(spec)
        before = failed_attempts(spark)
        started = time.monotonic()
        status, killer = 0, None
        try:
            with MemoryKiller(kind.killed_at) if kind and kind.killed_at else nullcontext() as killer:
                run_job(spec)
        except SparkInferError as error:
            status = error.exit_status
            print(error.render(), file=sys.stderr)
        seconds = time.monotonic() - started
        extra = failed_attempts(spark) - before
        table = spark.read.parquet(str(spec.sink.path)).collect() if status == 0 else []
        out: dict[str, Any] = {row["path"]: {key: row[key] for key in RESULT} for row in table}
        coded = Counter(row["error_code"] for row in table if row["error_code"])
        if kind is None:
            self._undisturbed = out
        wrong = self._compare(out, len(table), poison, kind.codes if kind else ())
        if killer is not None and not killer.killed:
            wrong.append("nothing was killed for its memory")
        if extra > 1:
            wrong.append(f"{extra} extra attempts")
        name = kind.name if kind else "none"
        codes = ", ".join(f"{count} {code}" for code, count in coded.items()) or "none"
        cells = (name, len(poison), len(rows), len(table), codes, extra, f"{seconds:.1f}", status)
        return [str(cell) for cell in cells], [f"{name}: {text}" for text in wrong]

    def _spec(self, rows: list[tuple[str, bytes]], kind: Kind | None) -> JobSpec:
        place = Path(tempfile.mkdtemp(dir=self._folder))
        names, images = zip(*rows, strict=True)
        table = pa.table({"path": pa.array(names), "content": pa.array(images, pa.binary())})
        pq.write_table(table, place / "images.parquet")
        return JobSpec.model_validate(
            {
                "source": {"parquet": str(place / "images.parquet")},
                "sharding": "none",
                "model": self._model,
                "preprocess": {**self._preprocess, **(kind.preprocess if kind else {})},
                "sink": {"path": str(place / "out")},
                "errors": {"max_fraction": 1, "row_timeout": self._timeout_s},
                "spark": {"master": "local[2]", "conf": {**CONF, **(kind.conf if kind else {})}},
            }
        )

    def _compare(self, out: dict[str, Any], count: int, poison: set[str], codes: tuple[str, ...]) -> list[str]:
        expected = poison | {name for name, _ in self._good}
        wrong = []
        if lost := expected - out.keys():
            wrong.append(f"{len(lost)} rows lost")
        if count != len(out) or out.keys() - expected:
            wrong.append(f"{count} rows out of {len(expected)}")
        if different := [name for name, _ in self._good if name in out and out[name] != self._undisturbed.get(name)]:
            wrong.append(f"{len(different)} rows are not as undisturbed, for example {different[0]}")
        if odd := {out[name]["error_code"] for name in poison & out.keys()} - set(codes):
            wrong.append(f"poison came out as {odd}")
        return wrong


CONF = {"spark.ui.enabled": "false", "spark.driver.host": "localhost", "spark.driver.bindAddress": "localhost"}

_conf: dict[str, Any] = {}


def _session(spec: JobSpec) -> SparkSession:
    """The running session, or another one where the settings are others."""
    active = SparkSession.getActiveSession()
    if active is not None and _conf != spec.spark.conf:
        active.stop()
    _conf.clear()
    _conf.update(spec.spark.conf)
    return get_session(spec)


HEAD = ("poison", "poison rows", "rows in", "rows out", "coded rows", "extra attempts", "seconds", "exit status")


def main() -> int:
    """Runs all kinds and prints the table."""
    parser = argparse.ArgumentParser(description="Every kind of poison row through a whole job.")
    parser.add_argument("--model", type=Path, help="model file; a fake one by default")
    parser.add_argument("--images", type=Path, help="folder of good images; 200 made ones by default")
    parser.add_argument("--timeout", type=float, default=3.0, help="errors.row_timeout, seconds")
    parser.add_argument("--seed", type=int, default=1, help="of the places of the poison")
    parser.add_argument("--only", help="run the kinds whose name holds this text")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="sparkinfer-poison-"))
    try:
        if given.images:
            good = [path.read_bytes() for path in sorted(given.images.rglob("*.*"))]
        else:
            good = [encode(noise((320, 240), seed), "JPEG") for seed in range(200)]
        model = {"path": str(given.model or fake_model_file(folder))}
        campaign = Campaign(folder, good, model, {}, given.timeout, given.seed)
        print(f"seed {given.seed}", file=sys.stderr)
        return run(campaign, [kind for kind in kinds() if not given.only or given.only in kind.name])
    finally:
        if active := SparkSession.getActiveSession():
            active.stop()
        shutil.rmtree(folder)


def run(campaign: Campaign, chosen: list[Kind]) -> int:
    """Runs some kinds, after one undisturbed run; prints the table and what was wrong."""
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    wrong = []
    for kind in (None, *chosen):
        cells, found = campaign.line(kind)
        print(f"| {' | '.join(cells)} |", flush=True)
        wrong += found
    print(*(f"WRONG: {text}" for text in wrong), sep="\n", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
