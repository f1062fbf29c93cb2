"""Peak memory of a Python worker for one huge image and for one huge partition: `python -m tests.chaos.big_rows`.

A model of no cost, so that whatever grows is the chain's own. Each case is a `sparkinfer run` of its own in a fresh
JVM. Prints the peak, what it is above a worker that has seen ten photographs only, and the bound that the code
promises for it; the exit status is 1 when one is broken or a row is missing.

A worker holds at most, above what it takes to run at all:

- compressed: one Arrow batch from Spark (`batch.max_bytes`, or one larger image), with decoder threads what waits for
  them (`pipeline.MAX_UNDECODED_BYTES`) and the batches that those images came in, and once more the largest image,
  of which Pillow keeps some kinds (WebP, AVIF) or parts (JPEG's metadata) for itself;
- decoded: one picture per decoder, 4 bytes a pixel, its first resized form, and numpy's view of the result;
- tensors: the batches in flight (`pipeline.BATCHES_IN_FLIGHT` and two more).
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from sparkinfer.executor import pipeline
from tests.chaos.workers import WorkerPeak

BUILD = Path(__file__).parents[2] / "build"
CPUS = 2
"""Decoder threads of the one task that runs."""
BATCH_BYTES = 16 << 20
"""`batch.max_bytes` by default."""
TENSOR = 224 * 224 * 3 * 4
BATCH = 32
"""The largest batch on a CPU."""
PHOTO_BYTES, PHOTO_SIZE = 150_000, (240, 180)
"""Of a photograph in the partition: many bytes and few pixels, so that bytes are what fills the memory."""
SLACK = 64 << 20
"""What allocators keep."""


@dataclass(frozen=True)
class Case:
    """One job.

    Attributes:
        images, parquet: the input; one of them.
        largest: bytes and pixels of the largest image.
        codes: what the rows must come out as.
        sets: more settings.
    """

    name: str
    largest: tuple[int, int]
    codes: dict[str, int]
    images: Path | None = None
    parquet: Path | None = None
    sets: tuple[str, ...] = ()

    @property
    def bound(self) -> int:
        """Bytes above a worker that has seen ten photographs."""
        size, pixels = self.largest
        if self.codes.get("TOO_LARGE") and self.images:
            return SLACK  # nothing is read
        batch = max(BATCH_BYTES, size)
        waiting = pipeline.MAX_UNDECODED_BYTES + CPUS * BATCH_BYTES
        tensors = (pipeline.BATCHES_IN_FLIGHT + 2) * BATCH * TENSOR
        return batch + size + waiting + tensors + CPUS * 4 * pixels + pixels + SLACK


def main() -> int:
    """Makes the inputs, runs all cases, removes the inputs."""
    parser = argparse.ArgumentParser(description="Peak memory of a Python worker for huge images and partitions.")
    parser.add_argument("--megabytes", type=int, default=400, help="size of the huge image")
    parser.add_argument("--gigabytes", type=float, default=3.0, help="size of the huge partition; a tenth runs too")
    parser.add_argument("--only", help="run the cases whose name holds this text")
    given = parser.parse_args()
    BUILD.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="big-rows-", dir=BUILD))
    try:
        return _run_all(folder, given.megabytes * 1_000_000, given.gigabytes, given.only)
    finally:
        shutil.rmtree(folder)


def _run_all(folder: Path, huge: int, gigabytes: float, only: str | None) -> int:
    (folder / "m.fake").write_text(json.dumps({"num_classes": 3, "blind": True}))
    base, _ = _run(folder, Case("ten photographs", (PHOTO_BYTES, 0), {"predicted": 10}, parquet=_photos(folder, 10)))
    print(f"{'ten photographs':<44} peak {base / 1e6:6.0f} MB: what a worker takes to run at all", flush=True)
    broken = 0
    for case in _cases(folder, huge, gigabytes, only or ""):
        peak, codes = _run(folder, case)
        good = codes == case.codes and peak - base <= case.bound
        broken += not good
        if not peak:
            print(f"{case.name:<44} no worker was started, rows {codes}{'' if good else '  WRONG'}", flush=True)
            continue
        print(
            f"{case.name:<44} peak {peak / 1e6:6.0f} MB, {(peak - base) / 1e6:+6.0f} MB, "
            f"bound {case.bound / 1e6:+6.0f} MB, rows {codes}{'' if good else '  WRONG'}",
            flush=True,
        )
    return 1 if broken else 0


def _cases(folder: Path, huge: int, gigabytes: float, only: str) -> Iterator[Case]:
    """Makes each input when its turn comes."""
    for size in (gigabytes / 10, gigabytes):
        rows = int(size * 1e9 / PHOTO_BYTES)
        name = f"one partition, {size:.1f} GB, {rows:,} photographs"
        if only in name:
            table = _photos(folder, rows)
            yield Case(name, (PHOTO_BYTES, PHOTO_SIZE[0] * PHOTO_SIZE[1]), {"predicted": rows}, parquet=table)
            table.unlink()
    side = int((huge / 3) ** 0.5)
    kinds: dict[str, tuple[Callable[[], bytes], int]] = {
        "BMP": (lambda: _bmp(side), side * side),
        "JPEG of metadata": (lambda: _jpeg_with_metadata(huge), 640 * 480),
    }
    for kind, (make, pixels) in kinds.items():
        if only in f"one {kind}":
            yield from _huge_cases(folder, kind, make(), pixels, limit=huge // 2)


def _huge_cases(folder: Path, kind: str, data: bytes, pixels: int, limit: int) -> Iterator[Case]:
    place = folder / kind.split(maxsplit=1)[0]
    place.mkdir()
    (place / f"huge.{place.name.lower()}").write_bytes(data)
    rows = folder / f"{place.name}.parquet"
    pq.write_table(pa.table({"path": ["huge"], "content": pa.array([data], pa.binary())}), rows, compression="none")
    name, size = f"one {kind}, {len(data) / 1e6:.0f} MB", len(data)
    sets = (f"source.max_bytes={limit}",)
    yield Case(f"{name}, a file", (size, pixels), {"predicted": 1}, images=place)
    yield Case(f"{name}, in Parquet", (size, pixels), {"predicted": 1}, parquet=rows)
    yield Case(f"{name}, a file over max_bytes", (size, pixels), {"TOO_LARGE": 1}, images=place, sets=sets)
    yield Case(f"{name}, in Parquet over max_bytes", (size, 0), {"TOO_LARGE": 1}, parquet=rows, sets=sets)


def _bmp(side: int) -> bytes:
    """An uncompressed picture of `side` x `side` pixels."""
    file = io.BytesIO()
    Image.linear_gradient("L").resize((side, side), Image.Resampling.NEAREST).convert("RGB").save(file, "BMP")
    return file.getvalue()


def _jpeg_with_metadata(size: int) -> bytes:
    """A small photograph behind thousands of application segments."""
    picture = _photo(640, 480, seed=0)
    segment = b"\xff\xe5" + (65_535).to_bytes(2, "big") + bytes(65_533)
    return picture[:2] + segment * (size // len(segment)) + picture[2:]


def _photo(width: int, height: int, seed: int) -> bytes:
    noise = np.random.default_rng(seed).integers(0, 256, (height // 3, width // 3, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    return file.getvalue()


def _photos(folder: Path, rows: int) -> Path:
    """A Parquet file of `rows` images of `PHOTO_BYTES` each, in row groups of some 60 MB."""
    pictures = [_photo(*PHOTO_SIZE, seed) for seed in range(8)]
    pictures = [picture + bytes(max(0, PHOTO_BYTES - len(picture))) for picture in pictures]
    path = folder / f"photos-{rows}.parquet"
    schema = pa.schema([("path", pa.string()), ("content", pa.binary())])
    with pq.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for start in range(0, rows, 400):
            numbers = range(start, min(rows, start + 400))
            contents = pa.array([pictures[n % len(pictures)] for n in numbers], pa.binary())
            writer.write_table(pa.table({"path": [f"{n:06d}" for n in numbers], "content": contents}, schema=schema))
    return path


def _run(folder: Path, case: Case) -> tuple[int, dict[str, int]]:
    """Peak resident bytes of a worker, and the rows by code."""
    out = folder / "out"
    conf = {
        "spark.driver.memory": "4g",
        "spark.task.cpus": CPUS,
        "spark.ui.enabled": "false",
        # One task takes the whole input.
        "spark.sql.files.maxPartitionBytes": "16g",
        "spark.sql.files.minPartitionNum": 1,
    }
    sets = ["sharding=none", "errors.max_fraction=1", *case.sets, *(f"spark.conf.{k}={v}" for k, v in conf.items())]
    source = ["--images", case.images] if case.images else ["--parquet", case.parquet]
    command = [sys.executable, "-c", "import sys; from sparkinfer.cli import main; sys.exit(main())", "run", *source]
    command += ["--model", folder / "m.fake", "--output", out, "--master", f"local[{CPUS}]", "--quiet"]
    command += [part for text in sets for part in ("--set", text)]
    with (
        subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as job,
        WorkerPeak(job.pid) as workers,
    ):
        text, _ = job.communicate()
    if job.returncode:
        print(f"{case.name}: exit status {job.returncode}\n{text[-2000:]}")
        return workers.peak, {}
    rows = pq.read_table(out, columns=["error_code", "path", "error_message"]).to_pylist()
    shutil.rmtree(out)
    codes = Counter(row["error_code"] or "predicted" for row in rows)
    for row in [row for row in rows if row["error_code"] and row["error_code"] not in case.codes][:3]:
        print(f"{case.name}: {row}")
    return workers.peak, dict(codes)


if __name__ == "__main__":
    sys.exit(main())
