"""Thousands of damaged images through one whole job: `python -m tests.chaos.fuzz_images`.

Parquet -> the demo's ONNX model -> Parquet, in a local session. Every image must come out as one row, predicted or
coded; the job must end with exit status 0. Prints the seed, with which the same images are made again.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sparkinfer import cli
from tests.chaos.image_mutations import Seed, mutated, seeds
from tests.chaos.workers import WorkerPeak

__all__ = ["damaged", "write_damaged"]

DEMO = Path(__file__).parents[2] / "build" / "demo"
ROWS_A_FILE = 500


def damaged(seed: int, rows: int, originals: list[Seed]) -> Iterator[tuple[str, bytes]]:
    """Name and content of `rows` images; each depends on the seed and its own number only."""
    for number in range(rows):
        what, data = mutated(random.Random(f"{seed}/{number}"), originals)
        yield f"{number:06d} {what}", data


def write_damaged(folder: Path, seed: int, rows: int, originals: list[Seed]) -> int:
    """The images as Parquet files with the columns path and content; gives the bytes of all images."""
    folder.mkdir()
    names: list[str] = []
    contents: list[bytes] = []
    total = 0

    def flush() -> None:
        table = pa.table({"path": pa.array(names, pa.string()), "content": pa.array(contents, pa.binary())})
        pq.write_table(table, folder / f"part-{names[0][:6]}.parquet", compression="none")
        names.clear()
        contents.clear()

    for name, data in damaged(seed, rows, originals):
        names.append(name)
        contents.append(data)
        total += len(data)
        if len(names) == ROWS_A_FILE:
            flush()
    if names:
        flush()
    return total


def check(source: Path, sink: Path) -> tuple[Counter[str], list[str]]:
    """Codes with their counts, and what is wrong with the prediction table."""
    given = pq.read_table(source, columns=["path"])["path"].to_pylist()
    found = pq.read_table(sink, columns=["path", "error_code", "predicted_class_idx", "confidence"])
    names, codes = found["path"].to_pylist(), found["error_code"].to_pylist()
    classes, confidences = found["predicted_class_idx"].to_pylist(), found["confidence"].to_pylist()
    wrong = []
    if Counter(names) != Counter(given):
        lost, doubled = set(given) - set(names), [name for name, n in Counter(names).items() if n > 1]
        wrong.append(f"lost {sorted(lost)[:5]}, doubled {doubled[:5]}, {len(names)} rows")
    for name, code, class_idx, confidence in zip(names, codes, classes, confidences, strict=True):
        if (code is None) != (class_idx is not None and confidence is not None and 0 <= confidence <= 1):
            wrong.append(f"{name}: code {code}, class {class_idx}, confidence {confidence}")
        if " kept" in name and "+" not in name and code is not None:
            wrong.append(f"{name}: an undamaged image got {code}")
    return Counter(code or "predicted" for code in codes), wrong


def main() -> int:
    """Makes the images, runs the job, checks the table; the exit status is 1 when something is wrong."""
    parser = argparse.ArgumentParser(description="Damaged images through one whole job.")
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--images", type=Path, default=DEMO / "images", help="folder of photographs to damage")
    parser.add_argument("--model", type=Path, default=DEMO / "efficientnet_lite0.onnx")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="sparkinfer-fuzz-") as name:
        folder = Path(name)
        size = write_damaged(folder / "images", given.seed, given.rows, seeds(given.images))
        started = time.monotonic()
        with WorkerPeak() as workers:
            flags = {
                "--parquet": str(folder / "images"),
                "--model": str(given.model),
                "--output": str(folder / "predictions"),
                "--set": "errors.max_fraction=1",
            }
            status = cli.main(["run", *(part for flag in flags.items() for part in flag)])
        seconds = time.monotonic() - started
        codes, wrong = check(folder / "images", folder / "predictions") if status == 0 else (Counter(), ["no table"])
    for line in wrong[:20]:
        print(f"wrong: {line}")
    print(
        f"seed {given.seed}: {given.rows:,} images of {size / 1e6:.0f} MB in, {codes.total():,} rows out, exit status "
        f"{status}, {len(wrong)} wrong; {', '.join(f'{n:,} {code}' for code, n in codes.most_common())}; "
        f"{seconds:.0f} s, peak memory of a Python worker {workers.peak / 1e6:.0f} MB"
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
