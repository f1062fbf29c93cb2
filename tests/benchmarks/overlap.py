"""How well decoding hides behind an accelerator: `python -m tests.benchmarks.overlap [--images DIR]`.

The fake runtime plays an accelerator that takes a fixed time for a batch, one batch at a time. The time is set to what
decoding the batch takes on all cores, the hardest case: neither side may wait for the other. Three clocks, interleaved
over several rounds: decoding alone, the accelerator alone, and the whole chain. The chain should take no longer than
the slower of the two; `overlap` is that time over the chain's (goal: at least 0.95). Decoder threads are compared with
decoder processes, which pay for sending every picture back.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa

from sparkinfer.core.model_spec import Artifact, ModelSpec, PostprocessSpec
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.core.spec import BatchSpec
from sparkinfer.executor.decode import decode
from sparkinfer.executor.plan import TaskPlan
from sparkinfer.executor.preprocess import Preprocessor
from sparkinfer.executor.task import run_task

SPEC = PreprocessSpec().folded()
BATCH = 32
ROUNDS = 5


def main() -> None:
    """Prints one line for each round's medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, default=Path("build/demo/images"), help="folder of JPEGs")
    parser.add_argument("--rows", type=int, default=1920)
    given = parser.parse_args()
    files = sorted(p for p in given.images.iterdir() if p.suffix.lower() in {".jpg", ".jpeg", ".png"})
    contents = [files[i % len(files)].read_bytes() for i in range(given.rows)]
    cores = len(os.sched_getaffinity(0))
    threads = statistics.median(seconds(lambda: decode_in_threads(contents, cores)) for _ in range(3))
    latency = threads / (given.rows / BATCH)
    clocks: dict[str, list[float]] = {"decode": [], "accelerator": [], "chain": [], "processes": []}
    with ProcessPoolExecutor(cores) as processes:
        list(processes.map(decode_one, contents[: 4 * cores]))
        for _ in range(ROUNDS):
            clocks["decode"].append(seconds(lambda: decode_in_threads(contents, cores)))
            clocks["accelerator"].append(seconds(lambda: sleep_often(latency, given.rows // BATCH)))
            clocks["chain"].append(seconds(lambda: run_chain(contents, plan(latency, cores))))
            clocks["processes"].append(seconds(lambda: list(processes.map(decode_one, contents, chunksize=8))))
    median = {name: statistics.median(values) for name, values in clocks.items()}
    ratios = [max(d, a) / c for d, a, c in zip(clocks["decode"], clocks["accelerator"], clocks["chain"], strict=True)]
    print(f"{given.rows} images, batches of {BATCH}, {cores} cores, {latency * 1e3:.1f} ms a batch")
    print("  ".join(f"{name} {given.rows / value:.0f}/s" for name, value in median.items()))
    print(f"overlap {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    print(f"decoder threads / processes {median['processes'] / median['decode']:.2f}")


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def sleep_often(latency: float, batches: int) -> None:
    """What the accelerator takes when nothing keeps it waiting."""
    for _ in range(batches):
        time.sleep(latency)


def decode_one(content: bytes) -> np.ndarray:
    """One picture, ready for the model."""
    preprocessor = Preprocessor(SPEC)
    image = decode(content, SPEC)
    out = np.empty(preprocessor.slot_shape(image), preprocessor.dtype)
    preprocessor.write(image, out)
    return out


def decode_in_threads(contents: list[bytes], cores: int) -> None:
    """All pictures on a pool of threads."""
    with ThreadPoolExecutor(cores) as pool:
        for _ in pool.map(decode_one, contents):
            pass


def plan(latency: float, cores: int) -> TaskPlan:
    """The chain in front of the simulated accelerator."""
    model = json.dumps({"num_classes": 3, "latency_s": latency, "blind": True}).encode()
    return TaskPlan(
        model=ModelSpec(path="m.fake", format="fake"),
        preprocess=SPEC,
        artifact=Artifact(digest=hashlib.sha256(model).hexdigest(), size=len(model), suffix=".fake"),
        source=lambda: model,
        num_classes=3,
        postprocess=PostprocessSpec(activation="none", top_k=1, check=False),
        batch=BatchSpec(size=BATCH),
        keys=(),
        cores=cores,
    )


def run_chain(contents: list[bytes], task: TaskPlan) -> None:
    """The whole chain on batches as Spark sends them."""
    rows = sum(out.num_rows for out in run_task(batches(contents), task))
    assert rows == len(contents)


def batches(contents: list[bytes], rows: int = 64) -> Iterator[pa.RecordBatch]:
    """Arrow batches of image bytes."""
    for start in range(0, len(contents), rows):
        yield pa.record_batch({"content": pa.array(contents[start : start + rows], pa.binary())})


if __name__ == "__main__":
    main()
