"""How a model of some size best reaches the nodes: `python -m tests.benchmarks.distribute [--megabytes 16,64,256]`.

A real Master and two Workers on this machine; each pretends to be a node with a cache of its own. For every size and
both ways (a broadcast, a file that Spark ships) a new model of random bytes is shipped, and every node makes its copy
and verifies it. Prints medians in seconds, from `ship` to the last node's copy, and the Python worker's peak memory.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any
from unittest import mock

from pyspark.sql import SparkSession

from sparkinfer.core.model_spec import Artifact
from sparkinfer.driver import model
from sparkinfer.executor.artifact import CACHE_VARIABLE, materialise, release
from tests.chaos.kills import PROPERTIES
from tests.chaos.standalone import Cluster

MEBI = 1 << 20
NODES = 2
WAYS = {"broadcast": 1 << 40, "file": 0}
"""The limit up to which a model is broadcast, by the way that it forces."""


def main() -> None:
    """Measures and prints one line for each size."""
    parser = argparse.ArgumentParser(prog="tests.benchmarks.distribute")
    parser.add_argument("--megabytes", default="4,16,64,128,256", help="sizes, by commas")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="sparkinfer-") as folder,
        Cluster(Path(folder) / "cluster", PROPERTIES, NODES) as cluster,
    ):
        os.environ.update(cluster.environment())
        spark = _session(cluster.url)
        _ship(spark, Path(folder), MEBI, "file")  # the executors and their Python start
        for megabytes in map(int, given.megabytes.split(",")):
            seen = {
                way: [_ship(spark, Path(folder), megabytes * MEBI, way) for _ in range(given.rounds)] for way in WAYS
            }
            print(f"{megabytes:>5} MB  " + "   ".join(_text(way, runs) for way, runs in seen.items()), flush=True)
        spark.stop()


def _session(url: str) -> SparkSession:
    return (
        SparkSession.builder.master(url)
        .config("spark.executor.memory", "1g")
        .config("spark.driver.memory", "2g")
        .config("spark.executor.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.python.worker.reuse", "false")  # else a worker's peak is that of all before
        .getOrCreate()
    )


def _ship(spark: SparkSession, folder: Path, size: int, way: str) -> tuple[float, float]:
    """Seconds until every node has its copy, and the largest peak of a Python worker, bytes."""
    path = folder / f"{time.monotonic_ns()}.bin"
    content = os.urandom(size)
    path.write_bytes(content)
    artifact = Artifact(digest=hashlib.sha256(content).hexdigest(), size=size, suffix=".bin")
    started = time.monotonic()
    with mock.patch.object(model, "BROADCAST_LIMIT", WAYS[way]):
        source = model.ship(spark, SimpleNamespace(path=path, artifact=artifact))
    # A barrier stage runs one task on each node's only core.
    tasks = spark.sparkContext.parallelize(range(NODES), NODES).barrier()
    peaks = tasks.mapPartitionsWithIndex(partial(_copy, artifact, source, str(folder))).collect()
    path.unlink()
    return time.monotonic() - started, max(peaks)


def _copy(artifact: Artifact, source: Any, folder: str, node: int, _rows: Iterator[int]) -> Iterator[int]:
    os.environ[CACHE_VARIABLE] = f"{folder}/node-{node}"
    release(materialise(artifact, source))
    yield resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _text(way: str, runs: list[tuple[float, float]]) -> str:
    seconds, peaks = zip(*runs, strict=True)
    spread = f"({min(seconds):.2f} to {max(seconds):.2f})"
    return f"{way} {median(seconds):.2f} s {spread}, worker {max(peaks) / MEBI:.0f} MB"


if __name__ == "__main__":
    main()
