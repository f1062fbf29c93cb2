"""What a report says, as plain data: the content of report.json, and all that report.html shows but pictures.

Driver side. Secrets are taken out here, once for both.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession

import sparkinfer
from sparkinfer.core.errors import SparkInferError
from sparkinfer.core.secrets import redacted, redacted_data
from sparkinfer.core.spec import JobSpec
from sparkinfer.core.telemetry import TaskState
from sparkinfer.driver.last_cause import last_cause
from sparkinfer.driver.model import Inspected
from sparkinfer.driver.reporting.table import TableFigures
from sparkinfer.driver.result import OUTCOME
from sparkinfer.driver.watching.devices import DeviceRecord
from sparkinfer.driver.watching.telemetry import Sample, Snapshot, TaskRecord

__all__ = ["QUANTILES", "Run", "content_of", "environment_of", "versions_of"]

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}

PARTITIONS = 200
"""The slowest, and as many of the heaviest, that the report lists one by one."""

_PACKAGES = (
    "pyspark",
    "pyarrow",
    "numpy",
    "pandas",
    "pillow",
    "onnxruntime",
    "onnxruntime-gpu",
    "torch",
    "torchvision",
)

_MAX_SETTING_CHARS = 500


@dataclass(frozen=True)
class Run:
    """A run that has ended, one way or another.

    Attributes:
        spec: of the job.
        run_id: of the run.
        model: what it ran.
        started: with a time zone.
        phases: seconds by phase.
        snapshot: the last one.
        records: of its partitions.
        history: its course.
        devices: that it used.
        outcome: from `JobResult.outcome`; what is known of it where the run failed.
        error: what ended it; None where it is done.
    """

    spec: JobSpec
    run_id: str
    model: Inspected
    started: datetime
    snapshot: Snapshot
    phases: Mapping[str, float] = field(default_factory=dict)
    records: Sequence[TaskRecord] = ()
    history: Sequence[Sample] = ()
    devices: Sequence[DeviceRecord] = ()
    outcome: Mapping[str, Any] = field(default_factory=dict)
    error: BaseException | None = None


def content_of(
    run: Run, table: TableFigures | str, versions: Mapping[str, str], environment: Mapping[str, Any]
) -> dict[str, Any]:
    """All of it, without secrets. Every run, done or failed, has the same keys; null is what nobody knows.

    Args:
        run: that has ended.
        table: what is in its rows, or why that is not known.
        versions: from `versions_of`.
        environment: from `environment_of`.
    """
    records = _final(run.records)
    described = {
        "name": run.spec.name,
        "state": "done" if run.error is None else "failed",
        "error": None if run.error is None else _error(run.error),
        **dict.fromkeys(OUTCOME),
        **run.outcome,
        "run_id": run.run_id,
        "started": run.started.isoformat(timespec="seconds"),
        "spec": run.spec.describe(),
        "model": _model(run.model),
        "phases": [{"name": name, "seconds": round(seconds, 3)} for name, seconds in run.phases.items()],
        "progress": _progress(run.snapshot, run.history),
        "stages": _stages(run.snapshot),
        "work": _work(run.snapshot),
        "devices": [{name: _rounded(value) for name, value in asdict(device).items()} for device in run.devices],
        "balance": _balance(records),
        "partition_table": [_record(record) for record in _listed(records)],
        "table": _table(table),
        "versions": versions,
        "environment": environment,
    }
    return dict(redacted_data(described))


def _error(error: BaseException) -> dict[str, Any]:
    known = error if isinstance(error, SparkInferError) else None
    status, message = 1, last_cause(error)
    if known is not None:
        status, message = known.exit_status, known.message
    elif isinstance(error, KeyboardInterrupt):
        name = str(error) or signal.SIGINT.name
        status, message = 128 + signal.Signals[name], f"stopped by {name}"
    return {
        "type": type(error).__name__,
        "message": message,
        "setting": known and known.key,
        "hint": known and known.hint,
        "exit_status": status,
    }


def _model(found: Inspected) -> dict[str, Any]:
    return {
        "name": found.spec.display_name,
        "version": found.spec.version,
        "format": found.spec.format,
        "digest": found.digest,
        "bytes": found.artifact.size,
        "classes": found.signature.num_classes,
        "input": str(found.signature.input),
    }


def _progress(snapshot: Snapshot, history: Sequence[Sample]) -> dict[str, Any]:
    seconds = snapshot.active_seconds
    return {
        "seconds": round(seconds, 3),
        "rows": snapshot.rows,
        "rows_per_second": round(snapshot.rows / seconds, 3) if seconds else None,
        "note": snapshot.note,
        "history": [
            {**asdict(sample), "seconds": round(sample.seconds, 3), "busy_share": _rounded(sample.busy_share)}
            for sample in history
        ],
    }


def _stages(snapshot: Snapshot) -> dict[str, dict[str, Any]]:
    return {
        stage: {
            "count": seconds.count,
            "seconds": round(seconds.total, 3),
            "mean": _rounded(seconds.mean),
            **{name: _rounded(seconds.quantile(share)) for name, share in QUANTILES.items()},
        }
        for stage, seconds in snapshot.figures.stages.items()
    }


def _work(snapshot: Snapshot) -> dict[str, Any]:
    figures = snapshot.figures
    return {
        "image_bytes": figures.image_bytes,
        "model_calls": figures.batch_images.count,
        "images_per_call": _rounded(figures.batch_images.mean),
        "oom_halvings": figures.oom_halvings,
        "model_loads": figures.model_loads,
        "model_load_seconds": round(figures.model_load_seconds, 3),
        "task_seconds": round(snapshot.task_seconds, 3),
        "busy_share": _rounded(snapshot.busy_share_since()),
        "failed_attempts": snapshot.tasks.failed,
    }


def _final(records: Sequence[TaskRecord]) -> list[TaskRecord]:
    """Of each partition the last attempt that did not fail, or else the last."""
    final: dict[tuple[int, int], TaskRecord] = {}
    for record in records:
        place = record.stage, record.partition
        if record.state is not TaskState.FAILED or place not in final:
            final[place] = record
    return list(final.values())


def _balance(records: Sequence[TaskRecord]) -> dict[str, Any] | None:
    """How evenly time and bytes are spread over the partitions."""
    if not records:
        return None
    return {
        "partitions": len(records),
        "seconds": _spread([record.seconds for record in records]),
        "image_bytes": _spread([record.image_bytes for record in records]),
        "rows": _spread([record.rows for record in records]),
    }


def _spread(values: Sequence[float]) -> dict[str, Any]:
    ordered = sorted(values)
    mean = sum(ordered) / len(ordered)
    # Nearest rank: the smallest value that at least this share of the values does not exceed.
    ranks = {name: ordered[math.ceil(share * len(ordered)) - 1] for name, share in QUANTILES.items()}
    return {
        "mean": _rounded(mean),
        **{name: _rounded(value) for name, value in ranks.items()},
        "largest": _rounded(ordered[-1]),
        "largest_over_mean": _rounded(ordered[-1] / mean) if mean else None,
    }


def _listed(records: Sequence[TaskRecord]) -> Iterable[TaskRecord]:
    slowest = sorted(records, key=lambda record: -record.seconds)[:PARTITIONS]
    heaviest = sorted(records, key=lambda record: -record.image_bytes)[:PARTITIONS]
    named = {(record.stage, record.partition): record for record in (*slowest, *heaviest)}
    return named.values()


def _record(record: TaskRecord) -> dict[str, Any]:
    return {name: _rounded(value) for name, value in asdict(record).items()}


def _table(table: TableFigures | str) -> dict[str, Any]:
    if isinstance(table, str):
        unknown = dict.fromkeys([*(one.name for one in fields(TableFigures)), "confidence_quantiles"])
        return {"note": table, **unknown}
    quantiles = {name: table.confidence_quantile(share) for name, share in (("p5", 0.05), ("p50", 0.5), ("p95", 0.95))}
    return {
        "note": None,
        **asdict(table),
        "confidence_quantiles": {name: _rounded(value) for name, value in quantiles.items()},
    }


def versions_of(spark: SparkSession) -> dict[str, str]:
    """Versions of this package, of Spark and Java, of Python on the driver and of what runs there."""
    jvm: Any = spark.sparkContext._jvm
    versions = {
        "sparkinfer": sparkinfer.__version__,
        "spark": spark.version,
        "java": str(jvm.java.lang.System.getProperty("java.version")),
        "python": platform.python_version(),
    }
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def environment_of(spark: SparkSession) -> dict[str, Any]:
    """Where the run took place: Spark's master and settings, the driver's machine."""
    context = spark.sparkContext
    return {
        "master": context.master,
        "application_id": context.applicationId,
        "parallelism": context.defaultParallelism,
        "driver_host": platform.node(),
        "driver_cpus": os.cpu_count(),
        "platform": platform.platform(),
        # Cut after secrets are gone: half of one is harder to see.
        "settings": {key: redacted(value)[:_MAX_SETTING_CHARS] for key, value in sorted(context.getConf().getAll())},
    }


def _rounded(value: Any) -> Any:
    """Figures with six significant digits: what a report needs, and what a float32 has."""
    return float(f"{value:.6g}") if isinstance(value, float) else value
