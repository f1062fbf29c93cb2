"""Ten real images through the whole chain, on the cluster and in one process, before anything is written. Driver side.

`sparkinfer validate` answers what a million rows would answer too late: can the images be read and decoded, does the
model answer with probabilities of the right shape, do its answers differ from image to image, and does the cluster
predict what one process predicts.
"""

from __future__ import annotations

import math
import pickle
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as F
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sparkinfer.core.errors import ModelError, UserError
from sparkinfer.core.spec import JobSpec
from sparkinfer.driver.frames import column
from sparkinfer.driver.helper_process import run_helper
from sparkinfer.driver.job import check_before_spark
from sparkinfer.driver.last_cause import told_by_workers
from sparkinfer.driver.model import Model
from sparkinfer.driver.predict import results
from sparkinfer.driver.read import read_source
from sparkinfer.driver.session import get_session, own_arrow_limits
from sparkinfer.driver.shard import shard
from sparkinfer.driver.sources.inputs import Input
from sparkinfer.executor.plan import LocalFileSource, TaskPlan
from sparkinfer.executor.postprocess import effective_classes
from sparkinfer.executor.sanity import TOLERANCE

__all__ = ["Check", "validate", "validate_command"]

IMAGES = 10
MAX_BYTES = 64 << 20
"""A longer image is not fetched to the driver."""

AGREEMENT = {"fp32": 1e-3, "fp16": 1e-2, "bf16": 3e-2}
"""By how much a confidence may differ between two machines: the last bits of the arithmetic."""


_MARKS = {"ok": "[green]ok[/]", "look": "[yellow]look[/]", "wrong": "[red]WRONG[/]"}
_LABELS = 5


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: what.
        state: ok; look: a person should have a look at it; wrong: the job should not run.
        detail: what was seen; what to do where it is not.
    """

    name: str
    state: Literal["ok", "look", "wrong"]
    detail: str


def validate_command(spec: JobSpec, console: Console) -> None:
    """`validate`, printed.

    Raises:
        UserError: something cannot be right.
        ModelError: a check failed.
    """
    checks = validate(spec)
    table = Table(show_header=False, box=None)
    for check in checks:
        table.add_row(_MARKS[check.state], f"[bold]{escape(check.name)}[/]", escape(check.detail))
    console.print(table)
    if wrong := [check.name for check in checks if check.state == "wrong"]:
        raise ModelError(
            f"not ready to run: {', '.join(wrong)}", key="model", hint="nothing was written; the table above says why"
        )


def validate(spec: JobSpec) -> list[Check]:
    """Runs the checks; writes nothing.

    Args:
        spec: a job.

    Returns:
        What was looked at, in order; the last ones are left out where an earlier one makes them pointless.

    Raises:
        UserError: the spec, the model, the input or the output cannot be right.
    """
    check_before_spark(spec, retries=False)
    model = Model(spec.model, spec.preprocess, spec.postprocess, spec.batch)
    spark = get_session(spec)
    found = model.inspected
    classes = effective_classes(found.signature.num_classes, spec.postprocess.activation)
    checks = [
        Check("job file", "ok", "every key is known"),
        Check("model", "ok", f"{found.spec.format}, takes {found.signature.input}, answers {found.signature.scores}"),
    ]
    limit = min(spec.source.limit or IMAGES, IMAGES)
    source = read_source(spark, spec.source.model_copy(update={"limit": limit}))
    plan = _plan(spark, spec, model, source)
    with told_by_workers():
        batch, here = _fetch(spark, spec, source, plan)
    if batch.num_rows == 0:
        return [*checks, Check("images", "wrong", "none of the first ones could be read")]
    try:
        alone = _alone(batch, replace(plan, source=LocalFileSource(found.path), counts=None))
    except UserError as error:
        return [*checks, Check("answers", "wrong", error.render().replace("\n", " "))]
    checks.append(_images(alone))
    good = [row for row in alone if row["error_code"] is None]
    if good:
        checks.append(_probabilities(good, classes, spec.postprocess.activation))
        checks.append(_variety(good))
        checks.append(_agreement(alone, here, plan.keys[0], AGREEMENT[spec.model.precision]))
    return checks


def _plan(spark: SparkSession, spec: JobSpec, model: Model, source: Input) -> TaskPlan:
    own_arrow_limits(spark, spec.batch.max_bytes, source.mean_bytes)
    return model.plan(
        spark,
        content=source.content_column,
        keys=source.content_keys,
        max_image_bytes=spec.source.max_bytes,
        row_timeout=spec.errors.row_timeout_seconds,
    )


def _fetch(spark: SparkSession, spec: JobSpec, source: Input, plan: TaskPlan) -> tuple[pa.RecordBatch, list[Row]]:
    """The images themselves, and what the cluster answers for them."""
    sharding = shard(spark, source, spec.sharding, spark.sparkContext.defaultParallelism)
    content = column(plan.content)
    images = sharding.content.where(F.coalesce(F.length(content), F.lit(0)) <= MAX_BYTES)
    with sharding.applied(spark):
        rows = images.select(*map(column, plan.keys), content).collect()
        # What makes no sense is told by one process, which sees all ten.
        unchecked = replace(plan, postprocess=plan.postprocess.model_copy(update={"check": False}))
        answers = results(images, unchecked, spec.engine).collect()
    names = [*plan.keys, plan.content]
    arrays = [pa.array([row[name] for row in rows]) for name in plan.keys]
    arrays.append(pa.array([row[plan.content] for row in rows], pa.binary()))
    return pa.RecordBatch.from_arrays(arrays, names=names), answers


def _alone(batch: pa.RecordBatch, plan: TaskPlan) -> list[dict[str, Any]]:
    answer = run_helper("sparkinfer.executor.validation", pickle.dumps((plan, batch)), lambda _stage: None)
    rows: list[dict[str, Any]] = answer["rows"]
    return rows


def _images(rows: Sequence[dict[str, Any]]) -> Check:
    failed = [row for row in rows if row["error_code"]]
    detail = f"{len(rows) - len(failed)} of {len(rows)} predicted"
    for code, count in Counter(row["error_code"] for row in failed).most_common():
        sample = next(row for row in failed if row["error_code"] == code)
        detail += f"; {count} {code}, for example {next(iter(sample.values()))}: {sample['error_message']}"
    return Check("images", "wrong" if len(failed) == len(rows) else "look" if failed else "ok", detail)


def _probabilities(rows: Sequence[dict[str, Any]], classes: int, activation: str) -> Check:
    """Shape and range of the answers; and whether the activation fits them."""
    answers = [[item["confidence"] for item in row["top_k"]] for row in rows]
    if any(len(answer) != classes for answer in answers):
        return Check("answers", "wrong", f"{len(answers[0])} confidences for {classes} classes")
    values = [value for answer in answers for value in answer]
    detail = f"[{len(rows)}, {classes}], from {min(values):.3g} to {max(values):.3g}"
    if not all(-TOLERANCE <= value <= 1 + TOLERANCE for value in values):
        return Check("answers", "wrong", f"{detail}: no probabilities; postprocess.activation: softmax makes them")
    one = all(abs(sum(answer) - 1) <= TOLERANCE for answer in answers)
    detail += "; they add up to 1" if one else "; each class for itself"
    # Softmax turns scores that differ by at most 1, as probabilities do, into confidences within a factor of e.
    if activation == "softmax" and classes > 1 and all(max(answer) <= math.e * min(answer) for answer in answers):
        return Check(
            "answers", "look", f"{detail}; nearly flat: if the model ends in a softmax, postprocess.activation: none"
        )
    return Check("answers", "ok", detail)


def _variety(rows: Sequence[dict[str, Any]]) -> Check:
    answers = {tuple((item["class_idx"], item["confidence"]) for item in row["top_k"]) for row in rows}
    tops = Counter(row["label"] or f"class {row['predicted_class_idx']}" for row in rows)
    detail = ", ".join(f"{label} {count}" for label, count in tops.most_common(_LABELS))
    if len(answers) == 1 and len(rows) > 1:
        return Check("variety", "look", f"one answer for all {len(rows)} images: {detail}")
    return Check("variety", "ok", f"{len(answers)} different answers: {detail}")


def _agreement(alone: Sequence[dict[str, Any]], cluster: Sequence[Row], key: str, tolerance: float) -> Check:
    """Every row that one process predicted, against the same row from the executors."""
    theirs = {row[key]: row for row in cluster}
    largest = 0.0
    for row in alone:
        other = theirs.get(row[key])
        if other is None:
            return Check("cluster", "wrong", f"{row[key]}: the executors gave no row")
        if other["error_code"] != row["error_code"]:
            seen = f"{row['error_code'] or 'predicted'} here, {other['error_code'] or 'predicted'} there"
            return Check("cluster", "wrong", f"{row[key]}: {seen}, {other['error_message'] or ''}".rstrip(", "))
        if row["error_code"] is None:
            largest = max(largest, abs(row["confidence"] - other["confidence"]))
            # Two classes that are all but equal may change places.
            if row["predicted_class_idx"] != other["predicted_class_idx"] and _lead(row) > tolerance:
                classes = f"class {row['predicted_class_idx']} here, {other['predicted_class_idx']} there"
                return Check("cluster", "wrong", f"{row[key]}: {classes}")
    detail = f"{len(alone)} rows, confidences within {largest:.1e} of one process's"
    return Check("cluster", "ok" if largest <= tolerance else "wrong", detail)


def _lead(row: dict[str, Any]) -> float:
    """By how much the best class is ahead of the next."""
    best = [item["confidence"] for item in row["top_k"][:2]]
    return float(best[0] - best[-1]) if len(best) == 2 else 1.0
