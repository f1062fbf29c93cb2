"""What a sink must not be, found out before the model sees an image. Driver side."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.errors import AnalysisException, IllegalArgumentException, ParseException
from pyspark.sql import SparkSession

from sparkinfer.core.errors import SinkError, UserError
from sparkinfer.core.spec import JobSpec, SinkSpec
from sparkinfer.driver.listing import hadoop_path, strings
from sparkinfer.driver.paths import has_glob, is_hidden, local_path
from sparkinfer.driver.sql_errors import quiet, sentence

__all__ = ["check_apart", "check_layout", "explained_sink"]

_NO_ARRAYS = {"csv", "text"}


def check_apart(spark: SparkSession | None, spec: JobSpec) -> None:
    """Refuses an output that holds the input, or lies in it: overwriting would delete what is read.

    Args:
        spark: None before there is a session; then only local paths are compared.
        spec: the job.

    Raises:
        SinkError: names both.
    """
    sink, source = spec.sink, spec.source
    if sink.table and source.kind == "table" and sink.table.lower() == source.locations[0].lower():
        raise SinkError(f"{sink.table!r} is the input", key="sink.table", hint="choose another table")
    if not sink.path:
        return
    read = [
        (f"source.{source.kind}", name) for name in source.locations if source.kind in {"images", "parquet", "paths"}
    ]
    read += [
        (key, name) for key, name in (("model.path", spec.model.path), ("model.labels", spec.model.labels)) if name
    ]
    target = _parts(spark, sink.path)
    for key, name in read:
        other = _parts(spark, name)
        if target is None or other is None:
            continue
        shorter = min(len(target), len(other))
        holds = target == other[: len(target)]
        inside = target[:shorter] == other[:shorter] and key in {"source.images", "source.parquet"}
        if holds or inside:
            relation = "is" if target == other else "holds" if holds else "lies in"
            raise SinkError(
                f"the output {sink.path!r} {relation} what {key} names, {name!r}",
                key="sink.path",
                hint="write to a folder of its own: else the input is deleted, or the next run reads the output",
            )


def _parts(spark: SparkSession | None, uri: str) -> list[str] | None:
    """The folders of a path, a glob's wildcards left out; None where it cannot be told."""
    local = local_path(uri)
    if local is not None:
        if has_glob(uri) and not local.exists():
            local = Path(*(part for part in _before_glob(local.parts)))
        return ["file:", *local.resolve().parts]
    if spark is None:
        return None
    try:
        path = hadoop_path(spark, uri)[0].toString()
    except UserError:
        return None
    return list(_before_glob(path.split("/")))


def _before_glob(parts: Iterable[str]) -> Iterator[str]:
    for part in parts:
        if has_glob(part):
            return
        yield part


def check_layout(spark: SparkSession, sink: SinkSpec) -> None:
    """Refuses to overwrite a folder that no Spark job wrote, and to append in another layout than the folder has.

    Raises:
        SinkError: says what is there.
    """
    if sink.format in _NO_ARRAYS:
        raise SinkError(
            f"{sink.format} cannot hold top_k, which is an array",
            key="sink.format",
            allowed=["parquet", "orc", "json", "avro", "delta", "iceberg"],
            hint="write parquet, and csv from a query over it",
        )
    names = _names(spark, sink)
    if names is None:
        return
    visible = [name for name in names if not is_hidden(name)]
    partitions = {name.split("=", 1)[0] for name in visible if "=" in name}
    foreign = [name for name in visible if "=" not in name and not name.startswith("part-")]
    if sink.mode == "overwrite" and foreign and "_SUCCESS" not in names:
        raise SinkError(
            f"{sink.path!r} holds files that no Spark job wrote ({', '.join(sorted(foreign)[:3])}, ...)",
            key="sink.mode",
            hint="overwriting would delete them: choose another folder, or empty this one by hand",
        )
    first = set(sink.partition_by[:1])
    if sink.mode == "append" and visible and partitions != first and (partitions or first):
        raise SinkError(
            f"{sink.path!r} is partitioned by {', '.join(sorted(partitions)) or 'nothing'}, not by "
            f"{', '.join(first) or 'nothing'}",
            key="sink.partition_by",
            hint="append with the folder's own partition columns: readers would lose the others",
        )


def _names(spark: SparkSession, sink: SinkSpec) -> list[str] | None:
    """Names in the target folder; None where there is none, or the format keeps its own books."""
    if not sink.path or sink.format in {"delta", "iceberg", "hudi"}:
        return None
    path, fs = hadoop_path(spark, sink.path)
    if not fs.exists(path):
        return None
    jvm: Any = spark.sparkContext._jvm
    paths = jvm.org.apache.hadoop.fs.FileUtil.stat2Paths(fs.listStatus(path))
    return [name.rsplit("/", 1)[-1] for name in strings(spark, paths)]


@contextmanager
def explained_sink(sink: SinkSpec) -> Iterator[None]:
    """Turns what Spark refuses about a sink's name, format or options into a `SinkError`."""
    try:
        with quiet():
            yield
    except (AnalysisException, IllegalArgumentException, ParseException) as error:
        key = "sink.table" if sink.table else "sink"
        raise SinkError(
            sentence(str(error)), key=key, hint="look at sink.table, sink.format, sink.options and sink.partition_by"
        ) from error
