"""A model as the driver knows it: described, found, inspected, and sent to the executors. Driver side."""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pyspark.sql import SparkSession

from sparkinfer.core.errors import ModelError
from sparkinfer.core.model_spec import Artifact, ModelSpec, PostprocessSpec, Signature
from sparkinfer.core.preprocess_spec import PreprocessSpec
from sparkinfer.core.registry import detect_format
from sparkinfer.core.spec import BatchSpec
from sparkinfer.driver.config import validated
from sparkinfer.driver.inspect import Inspection, inspect
from sparkinfer.driver.labels import check_labels, parse_labels, read_label_text
from sparkinfer.driver.listing import copy_to_local
from sparkinfer.driver.paths import local_path
from sparkinfer.driver.spark.resources import SETTINGS, decode_cores, guard_mode
from sparkinfer.executor.decode import decoder_of
from sparkinfer.executor.plan import BroadcastSource, SparkFileSource, TaskPlan
from sparkinfer.executor.postprocess import effective_classes

__all__ = ["Model", "model", "ship"]

log = logging.getLogger(__name__)

BROADCAST_LIMIT = 16 << 20
"""Bytes. Above it a model travels as a file per executor: a broadcast is pickled, cut, put together and unpickled, in
the memory of the Python worker that makes the node's copy, and is limited to 2 GiB. Measured with
`tests.benchmarks.distribute` on two nodes, seconds until both have their copy: 4 MB 2.4 against 2.3 by file, 16 MB 2.1
and 1.7, 64 MB 5.5 and 3.5, 256 MB 21.9 and 7.2; the worker holds the model 1.0 times, by file not at all. Small models
stay with the broadcast, which executors pass on to each other: hundreds of them would all ask the driver for a file."""


@dataclass(frozen=True)
class Model:
    """A model and how to use it. Nothing is opened or read until `inspected` or `plan` is asked for.

    Attributes:
        spec, preprocess, postprocess, batch: blocks of the job file.
    """

    spec: ModelSpec
    preprocess: PreprocessSpec = field(default_factory=PreprocessSpec)
    postprocess: PostprocessSpec = field(default_factory=PostprocessSpec)
    batch: BatchSpec = field(default_factory=BatchSpec)

    @cached_property
    def inspected(self) -> Inspected:
        """The model file's digest, signature and labels, read in a process of its own; once."""
        return _inspect(self)

    def plan(self, spark: SparkSession, **columns: Any) -> TaskPlan:
        """What the executors need, with the model on its way to them.

        Args:
            columns: `content`, `keys`, `max_image_bytes`, `row_timeout` of the plan.
        """
        found = self.inspected
        conf = {key: value for key in SETTINGS if (value := spark.conf.get(key, None)) is not None}
        return TaskPlan(
            model=found.spec,
            preprocess=found.preprocess,
            inside=found.inside,
            artifact=found.artifact,
            source=ship(spark, found),
            num_classes=found.signature.num_classes,
            postprocess=self.postprocess,
            batch=self.batch,
            labels=found.labels,
            cores=decode_cores(conf, spark.sparkContext.defaultParallelism),
            guard=guard_mode(conf),
            **columns,
        )


@dataclass(frozen=True)
class Inspected:
    """What the driver found out about a model.

    Attributes:
        spec: with `format` resolved.
        preprocess: what the chain does; a weights enum is resolved, and folded normalisation left out.
        inside: normalisation that the runtime applies.
        path: local file with the bytes that travel: the model's own, or the folded model's.
        digest: of the model's own file, SHA-256 in hex.
        artifact: what travels.
    """

    spec: ModelSpec
    preprocess: PreprocessSpec
    inside: PreprocessSpec | None
    path: Path
    digest: str
    artifact: Artifact
    signature: Signature
    labels: tuple[str, ...] | None


def model(
    path: str | os.PathLike[str],
    *,
    labels: str | None = None,
    preprocess: str | dict[str, Any] | PreprocessSpec | None = None,
    activation: Literal["softmax", "sigmoid", "none"] = "softmax",
    top_k: int = 5,
    embedding: str | None = None,
    check: bool = True,
    batch_size: int | Literal["auto"] = "auto",
    **options: Any,
) -> Model:
    """Describes a model for `predict`, `predict_udf` and `register_sql`.

    Args:
        path: local file or any Hadoop URI.
        labels: label file: text or JSON.
        preprocess: preset's name or a `preprocess:` block; by default what the file says of itself, else `imagenet`.
        activation: how scores become confidences.
        top_k: classes in the `top_k` column.
        embedding: output that fills the `embedding` column.
        check: look at each task's first results, and fail where they make no sense.
        batch_size: images per model call.
        options: other keys of the `model:` block: format, arch, device, precision, version, ...

    Raises:
        SpecError: a value that the job file would not take either.
    """
    block = preprocess.model_dump(exclude_unset=True) if isinstance(preprocess, PreprocessSpec) else preprocess
    return Model(
        spec=validated(ModelSpec, {"path": os.fspath(path), "labels": labels, **options}, "model"),
        preprocess=validated(PreprocessSpec, {} if block is None else block, "preprocess"),
        postprocess=validated(
            PostprocessSpec,
            {"activation": activation, "top_k": top_k, "embedding": embedding, "check": check},
            "postprocess",
        ),
        batch=validated(BatchSpec, {"size": batch_size}, "batch"),
    )


def _inspect(model: Model) -> Inspected:
    decoder_of(model.preprocess)  # here, so that a name that does not exist is told before any task fails of it
    spec = model.spec
    path = _localise(spec.path, "model.path")
    if spec.format == "auto":
        with path.open("rb") as file:
            spec = spec.model_copy(update={"format": detect_format(spec.path, file.read(4096), arch=spec.arch)})
    digest = _digest(path)
    if spec.digest is not None:
        path = _pinned_copy(path, digest, spec)
    answer = _ask(path, digest, spec, model)
    signature, folding = answer.signature, answer.folding
    labels = signature.labels
    name = spec.labels or spec.path
    if spec.labels:
        labels = parse_labels(read_label_text(_localise(spec.labels, "model.labels"), spec.labels), spec.labels)
    if labels is not None:
        check_labels(labels, effective_classes(signature.num_classes, model.postprocess.activation), name)
    packed = _packed(answer)
    digest = digest if packed is None else _digest(packed)
    travels = Path(folding.path)
    artifact = Artifact(
        digest=digest if travels in {path, packed} else _digest(travels),
        size=travels.stat().st_size,
        suffix=path.suffix,
    )
    return Inspected(spec, folding.preprocess, folding.inside, travels, digest, artifact, signature, labels)


_pinned: dict[str, Path] = {}


def _pinned_copy(path: Path, digest: str, spec: ModelSpec) -> Path:
    """A private copy of a file with the pinned digest: what was checked is what is opened, whoever changes the file.

    It is alone in its folder: weights in files beside the model, of which the digest says nothing, are not found.

    Raises:
        ModelError: the file is another one.
    """
    _check_pin(digest, spec)
    if digest not in _pinned:
        copy = _scratch() / path.name
        shutil.copyfile(path, copy)
        _check_pin(_digest(copy), spec)
        _pinned[digest] = copy
    return _pinned[digest]


def _check_pin(digest: str, spec: ModelSpec) -> None:
    pinned = str(spec.digest).lower().removeprefix("sha256:")
    if digest != pinned:
        raise ModelError(
            f"{spec.path!r} is not the file that is pinned: its SHA-256 is {digest}, expected {pinned}",
            key="model.digest",
            hint="the file was replaced or damaged; if the new one is meant, pin its digest",
        )


_asked: dict[tuple[str, ...], Inspection] = {}


def _ask(path: Path, digest: str, spec: ModelSpec, model: Model) -> Inspection:
    """`inspect`, once per process for the same bytes and blocks: the next job of a session need not wait for it."""
    blocks = (spec, model.preprocess, model.postprocess)
    kept_apart = {"labels", "name", "version", "digest"}
    # Only what is set: a key that is stated means more than its default to a model with a recipe of its own.
    key = (digest, *(block.model_dump_json(exclude=kept_apart, exclude_unset=True) for block in blocks))
    if key in _asked:
        return _asked[key]
    answer = inspect(str(path), *blocks, scratch=_scratch())
    if _packed(answer) is None:  # else weights in other files, which the digest does not know, belong to the model
        _asked[key] = answer
    return answer


def _packed(answer: Inspection) -> Path | None:
    """The file with weights that came from several."""
    packed = Path(answer.folding.path).with_stem("packed")
    return packed if packed.exists() else None


def _localise(uri: str, key: str) -> Path:
    """A local file with the bytes of `uri`; remote ones are fetched through the running session's Hadoop."""
    path = local_path(uri)
    if path is not None:
        if not path.is_file():
            kind = "is a folder" if path.is_dir() else "does not exist"
            raise ModelError(f"{str(path)!r} {kind}", key=key, hint=_near(path))
        return path
    spark = SparkSession.getActiveSession()
    if spark is None:
        raise ModelError(f"{uri!r} needs a Spark session to be read", key=key, hint="create the SparkSession first")
    copy = _scratch() / uri.rstrip("/").rsplit("/", 1)[-1]
    copy_to_local(spark, uri, copy, key)
    return copy


def _scratch() -> Path:
    """A private folder that lives as long as this process."""
    folder = Path(tempfile.mkdtemp(prefix="sparkinfer-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _near(path: Path) -> str:
    """What else lies in the folder, to help with a typo."""
    if not path.parent.is_dir():
        return f"there is no folder {str(path.parent)!r}"
    names = sorted(p.name for p in path.parent.iterdir() if p.suffix == path.suffix)[:5]
    return f"{str(path.parent)!r} has {', '.join(names) if names else f'no {path.suffix} file'}"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_shipped: dict[tuple[str, str], Callable[[], bytes | Path]] = {}


def ship(spark: SparkSession, found: Inspected) -> Callable[[], bytes | Path]:
    """Puts the model within reach of every executor, once per application and digest.

    Returns:
        A picklable source of the model's bytes, to be called on the executors.
    """
    context = spark.sparkContext
    key = (context.applicationId, found.artifact.digest)
    if key not in _shipped:
        if found.artifact.size <= BROADCAST_LIMIT:
            _shipped[key] = BroadcastSource(context.broadcast(found.path.read_bytes()))
        else:
            # Spark refuses two different files of one name, so the name is the digest.
            named = _scratch() / found.artifact.file_name
            try:
                os.link(found.path.resolve(), named)
            except OSError:
                shutil.copyfile(found.path, named)
            context.addFile(str(named))
            _shipped[key] = SparkFileSource(named.name)
    return _shipped[key]
