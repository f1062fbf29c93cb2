"""The input as `plan` sees it: local files are listed by Python, or made up; Spark is asked for others. Driver side."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from pyspark.sql import SparkSession

from sparkinfer.core.errors import EmptySourceError, SpecError
from sparkinfer.core.quantities import amount
from sparkinfer.core.secrets import redacted
from sparkinfer.core.spec import JobSpec, SourceSpec
from sparkinfer.driver.checkpoints.snapshots import find, is_streamed, snapshots
from sparkinfer.driver.paths import Root, local_path, parse, qualify
from sparkinfer.driver.read import read_source
from sparkinfer.driver.shard import shard
from sparkinfer.driver.sources import local_files
from sparkinfer.driver.sources.file_input import FoundFiles, find_folders, find_path_table, found_in, judge
from sparkinfer.driver.sources.files import each_once, listing_table
from sparkinfer.driver.sources.inputs import describe_files
from sparkinfer.driver.sources.local_files import FileRow
from sparkinfer.driver.splits.file_tasks import SparkSplit, file_tasks

__all__ = ["Assumed", "Cuts", "assume", "cut_files", "cut_rows", "find_local", "find_with_spark", "parse_assumed"]

SPREAD = 0.6
"""Of the logarithms of made-up sizes: two thirds of the files are within a factor of 1.8 of each other's middle."""


@dataclass(frozen=True)
class Assumed:
    """An input that is not there yet.

    Attributes:
        files: how many.
        mean_bytes: of one.
    """

    files: int
    mean_bytes: int


@dataclass(frozen=True)
class Cuts:
    """An input and its tasks.

    Attributes:
        said: the input in one line.
        reason: how it is cut, and why.
        partitions: tasks; of the first snapshot with `resume`; None where only running would tell.
        tasks: of all snapshots.
        snapshots: None without `resume`, and where only running would tell.
        heaviest_over_mean: bytes of the heaviest task over the mean, in the worst snapshot.
        led: files are packed by us, not by Spark.
        rows: of the prediction table, where that is known.
        bytes, largest: of all files and of the largest; None where they are not known.
        mean_bytes: of an image, where it is known.
    """

    said: str
    reason: str
    partitions: int | None
    tasks: int | None = None
    snapshots: int | None = None
    heaviest_over_mean: float | None = None
    led: bool = False
    rows: int | None = None
    bytes: int | None = None
    largest: int | None = None
    mean_bytes: float | None = None


def find_local(source: SourceSpec) -> FoundFiles | None:
    """The files that a run would find, without Spark.

    Returns:
        None where Spark has to say: other file systems, globs, conditions in SQL, and what is no list of files.

    Raises:
        SourceError: nothing is there, or a folder may not be listed.
    """
    if source.kind != "images" or source.where is not None or source.sample is not None:
        return None
    paths = [_existing(location) for location in source.locations]
    if None in paths:
        return None
    left_out: Counter[str] = Counter()
    rows = (row for path in paths if path is not None for row in _rows(path, left_out))
    table = each_once(listing_table(rows), left_out).slice(0, source.limit)
    if not table.num_rows:
        raise EmptySourceError(f"no files in {', '.join(source.locations)}", key="source.images")
    return found_in(source, table, left_out)


def find_with_spark(spark: SparkSession, source: SourceSpec) -> FoundFiles | None:
    """The files that a run would find; None where the input is no list of files."""
    if source.kind == "images":
        return find_folders(spark, source)
    return find_path_table(spark, source) if source.kind == "paths" else None


def assume(given: Assumed, source: SourceSpec) -> FoundFiles:
    """Made-up files that go through the same steps as listed ones. Names and sizes are the same each time."""
    sizes = np.random.default_rng(0).lognormal(0.0, SPREAD, given.files)
    lengths = np.maximum(1, sizes * (given.mean_bytes / sizes.mean())).astype(np.int64)
    rows = (
        FileRow(f"file:/assumed/{number // 1000:06d}/{number:09d}.jpg", length, 0, None)
        for number, length in enumerate(lengths.tolist())
    )
    left_out: Counter[str] = Counter()
    images = SourceSpec(images="an assumed input", max_bytes=source.max_bytes, limit=source.limit)
    return found_in(images, each_once(listing_table(rows), left_out).slice(0, source.limit), left_out)


def parse_assumed(files: int, mean_size: str) -> Assumed:
    """Reads `--files` and `--mean-size`.

    Raises:
        SpecError: no such size.
    """
    try:
        size = amount(mean_size)
    except ValueError:
        size = amount(1)
    if size.unit != "bytes" or not size.count:
        raise SpecError(f"{mean_size!r} is no size of a file", key="--mean-size", allowed=["110 kB", "3.5 MB"])
    return Assumed(files, size.count)


def cut_files(found: FoundFiles, spec: JobSpec, cores: int, split: SparkSplit) -> Cuts:
    """Cuts files as a run does, whole or snapshot by snapshot.

    Args:
        found: the files.
        spec: the job.
        cores: tasks at once, as Spark will count them.
        split: Spark's settings for files.
    """
    source, judged = found.source, judge(found.table, found.source.max_bytes)
    lengths = judged.files.lengths
    parts = [judged.files.lengths]
    if spec.resume is not None:
        spark = cast("Any", None)  # asked only about tables and about rows that carry their bytes
        is_streamed(spark, spec)
        positions = snapshots(spark, found, spec, spec.resume.snapshot)
        parts = [judge(found.take(part).table, source.max_bytes).files.lengths for part in positions]
    cuts = [file_tasks(part, spec.sharding, cores, split) for part in parts]
    said = describe_files(judged.files, ", ".join(source.locations), judged.known, found.left_out)
    return Cuts(
        said=redacted(said),
        reason=cuts[0].reason,
        partitions=cuts[0].partitions,
        tasks=sum(cut.partitions for cut in cuts),
        snapshots=None if spec.resume is None else len(cuts),
        heaviest_over_mean=max(cut.heaviest_over_mean for cut in cuts),
        led=any(cut.assigned is not None for cut in cuts),
        rows=found.row_count,
        bytes=int(lengths.sum()),
        largest=int(lengths.max()) if len(lengths) else 0,
        mean_bytes=float(lengths.mean()) if len(lengths) else None,
    )


def cut_rows(spark: SparkSession, spec: JobSpec, cores: int) -> Cuts:
    """Cuts rows that carry their bytes as a run does: counts them, or measures small inputs, as `splits.rows` says."""
    source = read_source(spark, spec.source)
    count = None
    if spec.resume is not None:
        if is_streamed(spark, spec):
            return Cuts(source.describe(), "Spark's streaming says what is new in the table", None)
        found = find(spark, spec)
        parts = snapshots(spark, found, spec, spec.resume.snapshot)
        source, count = found.take(parts[0]).to_input(spark), len(parts)
    sharding = shard(spark, source, spec.sharding, cores)
    return Cuts(
        said=source.describe(),
        reason=sharding.reason,
        partitions=sharding.partitions,
        tasks=sharding.partitions if count is None else None,
        snapshots=count,
        heaviest_over_mean=sharding.heaviest_over_mean,
    )


def _existing(location: str) -> Path | None:
    path = local_path(location)
    if path is None or not path.exists():
        return None
    # Without a scheme Hadoop's default file system counts, and its configuration may name another one.
    clustered = any(os.environ.get(name) for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"))
    return None if clustered and parse(location)[0] is None else path


def _rows(path: Path, left_out: Counter[str]) -> Iterator[FileRow]:
    here = Root(local_files.PREFIX, str(Path.cwd()))
    plain = qualify(str(path), lambda _scheme, _authority: here).removeprefix(local_files.PREFIX)
    if Path(plain).is_dir():
        yield from local_files.walk(plain, left_out)
    else:
        yield local_files.look_up(plain)
