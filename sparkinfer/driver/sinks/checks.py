"""What a sink must not be, found out before the model sees an image. Driver side."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pyspark.errors import AnalysisException, IllegalArgumentException, ParseException
from pyspark.sql import SparkSession

from sparkinfer.core.errors import JobFailedError, SinkError, SpecError, UserError
from sparkinfer.core.secrets import LOGIN_PATTERN
from sparkinfer.core.spec import JobSpec, SinkSpec
from sparkinfer.driver.listing import JAVA_ERRORS, hadoop_path, names_in
from sparkinfer.driver.names import table_name
from sparkinfer.driver.paths import has_glob, is_hidden, local_path
from sparkinfer.driver.sql_errors import quiet, sentence

__all__ = ["check_apart", "check_checkpoint", "check_holds_arrays", "check_layout", "explained_sink"]

_NO_ARRAYS = {"csv", "text"}

_FULL = re.compile(r"No space left on device|Disk quota exceeded|The DiskSpace quota of [^\n]* is exceeded")
"""Of Linux twice, and of HDFS."""


def check_apart(spark: SparkSession | None, spec: JobSpec) -> None:
    """Refuses an output that holds the input, or lies in it: overwriting would delete what is read; or the report.

    Args:
        spark: None before there is a session; then only local paths are compared.
        spec: the job.

    Raises:
        SinkError: names both.
        SpecError: so does this, for the report.
    """
    sink, source = spec.sink, spec.source
    if sink.table and source.kind == "table" and _is_same_table(sink.table, source.locations[0]):
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
    report = _parts(spark, spec.report) if spec.report else None
    lies_in = target is not None and report is not None and target == report[: len(target)]
    if lies_in and not any(map(is_hidden, (report or [])[len(target or []) :])):
        raise SpecError(
            f"{spec.report!r} would be taken for data of the output, {sink.path!r}",
            key="report",
            hint="choose a folder of its own",
        )
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


def _is_same_table(one: str, other: str) -> bool:
    return table_name(one, "sink.table").lower() == table_name(other, "source.table").lower()


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


def check_checkpoint(spark: SparkSession | None, spec: JobSpec) -> None:
    """Refuses a checkpoint that would be read as input or as output.

    Args:
        spark: None before there is a session; then only local paths are compared.
        spec: the job.

    Raises:
        SpecError: names both.
    """
    if spec.resume is None:
        return
    for key, name in (
        ("resume.checkpoint", spec.resume.checkpoint),
        *((f"source.{spec.source.kind}", location) for location in spec.source.locations),
        ("sink.path", spec.sink.path or ""),
    ):
        if re.search(LOGIN_PATTERN, name):
            raise SpecError(
                "a login in the URI would be written into the checkpoint",
                key=key,
                hint="give the login by a Hadoop credential provider or by spark.conf, and the URI without it",
            )
    checkpoint = _parts(spark, spec.resume.checkpoint)
    places = [("sink.path", spec.sink.path)] if spec.sink.path else []
    if spec.source.kind in {"images", "parquet"}:
        places += [(f"source.{spec.source.kind}", name) for name in spec.source.locations]
    for key, name in places:
        other = _parts(spark, name)
        if checkpoint is None or other is None:
            continue
        below = checkpoint[len(other) :]
        holds = other == checkpoint[: len(other)] and not any(map(is_hidden, below))
        if holds or (key == "sink.path" and checkpoint == other[: len(checkpoint)]):
            raise SpecError(
                f"{spec.resume.checkpoint!r} would be taken for data of {key}, {name!r}",
                key="resume.checkpoint",
                hint="choose a folder of its own, or one whose name begins with _, which readers pass over",
            )


def check_holds_arrays(sink: SinkSpec) -> None:
    """Refuses formats without arrays.

    Raises:
        SinkError: says which have them.
    """
    if sink.format in _NO_ARRAYS:
        raise SinkError(
            f"{sink.format} cannot hold top_k, which is an array",
            key="sink.format",
            allowed=["parquet", "orc", "json", "avro", "delta", "iceberg"],
            hint="write parquet, and csv from a query over it",
        )


def check_layout(spark: SparkSession, sink: SinkSpec) -> None:
    """Refuses to overwrite a folder that no Spark job wrote, and to append in another layout than the folder has.

    Raises:
        SinkError: says what is there.
    """
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
    if sink.mode != "append" or not visible:
        return
    columns = sorted(partitions) if len(partitions) > 1 else _partition_columns(spark, str(sink.path), visible)
    if columns != list(sink.partition_by):
        raise SinkError(
            f"{sink.path!r} is partitioned by {', '.join(columns) or 'nothing'}, not by "
            f"{', '.join(sink.partition_by) or 'nothing'}",
            key="sink.partition_by",
            hint="append with the folder's own partition columns: readers would lose the others",
        )


def _partition_columns(spark: SparkSession, folder: str, names: list[str]) -> list[str]:
    """Of a folder with these names, going down its first partitions."""
    columns: list[str] = []
    while deeper := sorted(name for name in names if "=" in name and not is_hidden(name)):
        columns.append(deeper[0].split("=", 1)[0])
        folder = f"{folder.rstrip('/')}/{deeper[0]}"
        names = names_in(spark, folder) or []
    return columns


def _names(spark: SparkSession, sink: SinkSpec) -> list[str] | None:
    """Names in the target folder; None where there is none, or the format keeps its own books."""
    if not sink.path or sink.format in {"delta", "iceberg", "hudi"}:
        return None
    return names_in(spark, sink.path)


@contextmanager
def explained_sink(sink: SinkSpec) -> Iterator[None]:
    """Turns what Spark refuses about a sink's name, format or options into a `SinkError`, and a full disk into a line.

    Raises:
        SinkError: what Spark says.
        JobFailedError: no space is left.
    """
    try:
        with quiet():
            yield
    except (AnalysisException, IllegalArgumentException, ParseException) as error:
        key = "sink.table" if sink.table else "sink"
        raise SinkError(
            sentence(str(error)), key=key, hint="look at sink.table, sink.format, sink.options and sink.partition_by"
        ) from error
    except JAVA_ERRORS as error:
        full = _FULL.search(str(error))
        if full is None:
            raise
        raise JobFailedError(
            f"{full[0]}: in {sink.target!r}, or in a local folder of Spark (spark.local.dir)",
            key="sink.table" if sink.table else "sink.path",
            hint="make room and run it again: nothing of what was not finished is in the output",
        ) from error
