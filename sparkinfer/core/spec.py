"""The job file as frozen models: every key with its type, default and one line of meaning. Driver; parts pickle.

Unknown keys are refused. The README's reference is generated from these fields, so what stands here is what a
person reads.
"""

from __future__ import annotations

import re
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from sparkinfer.core.model_spec import ModelSpec, PostprocessSpec
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.core.quantities import Amount, amount, seconds
from sparkinfer.core.secrets import redacted_data

__all__ = [
    "BatchSpec",
    "ErrorsSpec",
    "JobSpec",
    "MetricsSpec",
    "ProgressSpec",
    "ResumeSpec",
    "SinkSpec",
    "SourceSpec",
    "SparkSpec",
]

SOURCE_KINDS = ("images", "parquet", "table", "query", "paths")

TRANSACTIONAL = ("delta", "iceberg")
"""Formats whose tables keep a history and take several changes in one transaction."""


class _Block(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class SourceSpec(_Block):
    """Where the images are. Exactly one of images, parquet, table, query, paths."""

    images: str | tuple[str, ...] | None = Field(None, description="folder, file or glob of image files, or a list")
    parquet: str | tuple[str, ...] | None = Field(None, description="Parquet path, glob or list with a binary column")
    table: str | None = Field(None, description="catalogue table with a binary column")
    query: str | None = Field(None, description="SQL query that gives a binary column")
    paths: str | None = Field(
        None, description="table, or .parquet, .csv, .json, .txt file or folder, that lists image paths"
    )
    content_column: str = Field("content", description="column of image bytes (parquet, table, query)")
    path_column: str = Field("path", description="column that names a row: the table's key, or the files of `paths`")
    keep: tuple[str, ...] = Field((), description="more input columns to carry into the prediction table")
    where: str | None = Field(None, description="SQL condition on input rows; acts before the model")
    sample: float | None = Field(None, description="share of input rows in (0, 1]; acts before the model", gt=0, le=1)
    seed: int = Field(0, description="of `sample`")
    limit: int | None = Field(None, description="at most so many rows; acts before the model", ge=1)
    max_bytes: int = Field(1 << 30, description="longer images get TOO_LARGE, unread where possible", ge=1, lt=1 << 31)

    @model_validator(mode="after")
    def _one_kind(self) -> SourceSpec:
        given = [kind for kind in SOURCE_KINDS if getattr(self, kind)]
        if len(given) != 1:
            found = " and ".join(given) if given else "none of them"
            raise ValueError(f"needs exactly one of {', '.join(SOURCE_KINDS)}; found {found}")
        return self

    @property
    def kind(self) -> str:
        """Which of images, parquet, table, query, paths is given."""
        return next(kind for kind in SOURCE_KINDS if getattr(self, kind))

    @property
    def locations(self) -> tuple[str, ...]:
        """The given value, as a tuple."""
        value = getattr(self, self.kind)
        return (value,) if isinstance(value, str) else tuple(value)


class BatchSpec(_Block):
    """How many images the model sees at once, and how many bytes one Arrow batch carries."""

    size: int | Literal["auto"] = Field("auto", description="images per model call, or auto; at most 1 GiB of inputs")
    max_bytes: int = Field(16 << 20, description="bound on image bytes of one Arrow batch from Spark", ge=1 << 20)

    @model_validator(mode="after")
    def _positive(self) -> BatchSpec:
        if self.size != "auto" and not 1 <= self.size <= 65_536:
            raise ValueError("size must be auto or a whole number from 1 to 65536")
        return self


class SinkSpec(_Block):
    """Where the prediction table goes. Exactly one of path and table."""

    path: str | None = Field(None, description="folder of the prediction table, on any Hadoop file system")
    table: str | None = Field(None, description="catalogue table, written with saveAsTable")
    format: str = Field("parquet", description="any Spark format: parquet, orc, json, delta, iceberg, ...")
    mode: Literal["error", "overwrite", "append", "merge"] = Field(
        "error",
        description="what to do when it is already there; merge: only rows of the same path go (delta, iceberg)",
    )
    partition_by: tuple[str, ...] = Field((), description="partition columns, out of the prediction table's")
    options: dict[str, str] = Field(default_factory=dict, description="passed on to Spark's writer")

    @model_validator(mode="after")
    def _one_target(self) -> SinkSpec:
        if bool(self.path) == bool(self.table):
            raise ValueError("needs exactly one of path, table")
        if self.mode == "merge" and self.format not in TRANSACTIONAL:
            raise ValueError(f"mode merge needs format {' or '.join(TRANSACTIONAL)}, not {self.format}")
        return self

    @property
    def target(self) -> str:
        """The path or the table."""
        return self.path or self.table or ""


class ErrorsSpec(_Block):
    """How many rows may fail, and how long one may take."""

    max_fraction: float = Field(
        0.5, description="share of rows in [0, 1] that may fail; above it the exit status is 3", ge=0, le=1
    )
    max_rows: int | None = Field(None, description="number of rows that may fail; above it the exit status is 3", ge=0)
    row_timeout: str | float = Field("5 min", description="longest time for one row (60s, 5 min); longer is TIMEOUT")

    @field_validator("row_timeout")
    @classmethod
    def _is_duration(cls, value: str | float) -> str | float:
        seconds(value)
        return value

    @property
    def row_timeout_seconds(self) -> float:
        """`row_timeout`, seconds."""
        return seconds(self.row_timeout)


class ResumeSpec(_Block):
    """A long run as a series of committed snapshots: after a crash the same command goes on where it stopped."""

    checkpoint: str = Field(description="folder that remembers what is finished, on any Hadoop file system")
    snapshot_every: str | int = Field(
        "1000 batches", description="how much one snapshot holds: batches, files or bytes"
    )
    trigger: str | float | None = Field(
        None,
        description="keep running and look for new input this often (30s, 5 min); stop when all is done by default",
    )

    @field_validator("snapshot_every", mode="before")
    @classmethod
    def _is_amount(cls, value: Any) -> Any:
        if isinstance(value, str | int):
            amount(value)
        return value

    @field_validator("trigger")
    @classmethod
    def _is_duration(cls, value: str | float | None) -> str | float | None:
        if value is not None:
            seconds(value)
        return value

    @property
    def snapshot(self) -> Amount:
        """`snapshot_every`, understood."""
        return amount(self.snapshot_every)

    @property
    def trigger_seconds(self) -> float | None:
        """`trigger`, seconds."""
        return None if self.trigger is None else seconds(self.trigger)


_LONGEST_SILENCE_S = 86_400.0


class ProgressSpec(_Block):
    """What is told while the job runs."""

    every: str | float = Field("10s", description="between two lines where there is no terminal (10s, 5 min)")
    live: bool = Field(
        True,
        description="executors send figures to the driver while tasks run; off: they are counted as tasks end, for "
        "networks that must not carry more than Spark's own traffic",
    )

    @field_validator("every")
    @classmethod
    def _is_duration(cls, value: str | float) -> str | float:
        if seconds(value) > _LONGEST_SILENCE_S:
            raise ValueError("at most a day")
        return value

    @property
    def every_seconds(self) -> float:
        """`every`, seconds."""
        return seconds(self.every)


def _is_http_url(text: str) -> bool:
    """Whether a URL can be called: with a host, a port that is a number, and no login."""
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return False
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and not re.search(r"[\s@]", parts.netloc)


class MetricsSpec(_Block):
    """Figures for Prometheus: served while the job runs, pushed when it ends. At least one of port and push."""

    port: int | None = Field(
        None,
        description="serve http://ADDRESS:PORT/metrics on the driver while the job runs; 0 takes a free port",
        ge=0,
        le=65_535,
    )
    address: str | None = Field(
        None, description="the one address to listen on; the driver's by default, 127.0.0.1 with a local master"
    )
    push: str | None = Field(None, description="URL of a Pushgateway that gets the figures when the job ends")

    @field_validator("push")
    @classmethod
    def _is_url(cls, value: str | None) -> str | None:
        if value is not None and not _is_http_url(value):
            raise ValueError("must be an http or https URL without a login: http://gateway:9091")
        return value

    @model_validator(mode="after")
    def _some_way_out(self) -> MetricsSpec:
        if self.port is None and self.push is None:
            raise ValueError("needs port, push or both")
        if self.address is not None and self.port is None:
            raise ValueError("an address needs a port")
        return self


class SparkSpec(_Block):
    """The session, where spark-submit has not made one."""

    master: str | None = Field(None, description="local[*] unless spark-submit or spark-defaults.conf says otherwise")
    conf: dict[str, str | int | float | bool] = Field(default_factory=dict, description="Spark settings")


class JobSpec(_Block):
    """One job: source -> model -> sink."""

    name: str = Field("sparkinfer", description="application name", min_length=1)
    source: SourceSpec
    model: ModelSpec
    preprocess: PreprocessSpec = Field(default_factory=PreprocessSpec, description="preset's name or block")
    postprocess: PostprocessSpec = Field(default_factory=PostprocessSpec)
    batch: BatchSpec = Field(default_factory=BatchSpec)
    engine: Literal["arrow", "pandas", "predict_batch_udf"] = Field(
        "arrow", description="mapInArrow, mapInPandas or predict_batch_udf: the same predictions"
    )
    sharding: Literal["auto", "files", "bytes", "hybrid", "none"] = Field(
        "auto", description="how input is spread over partitions"
    )
    sink: SinkSpec
    errors: ErrorsSpec = Field(default_factory=ErrorsSpec)
    resume: ResumeSpec | None = Field(None, description="go on after a crash; one plain job when left out")
    report: str | None = Field(None, description="folder for report.html and report.json")
    progress: ProgressSpec = Field(default_factory=ProgressSpec)
    metrics: MetricsSpec | None = Field(None, description="figures for Prometheus; none when left out")
    spark: SparkSpec = Field(default_factory=SparkSpec)

    def describe(self) -> dict[str, Any]:
        """The spec as plain data without its secrets, for logs, reports and checkpoints."""
        described: dict[str, Any] = redacted_data(self.model_dump(mode="json", exclude_defaults=True))
        return described
