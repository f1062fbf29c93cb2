"""Job file + `--set` + flags -> `JobSpec`. Driver only; imports no pyspark, so that a wrong spec is told at once.

Later wins: the file, then `--set` in the order given, then flags. Relative paths, in the file too, are relative to the
current directory. Every wrong key or value ends as one `SpecError`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from sparkinfer.core.errors import SpecError
from sparkinfer.core.secrets import MASK, is_secret_name
from sparkinfer.core.spec import SOURCE_KINDS, JobSpec
from sparkinfer.driver.paths import unusable
from sparkinfer.driver.specs.errors import spec_error
from sparkinfer.driver.specs.fields import (
    annotation_at,
    block_of,
    field_at,
    is_free_block,
    takes_list_of_text,
    takes_text,
    type_in_words,
)
from sparkinfer.driver.specs.job_file import JobFile, parse_job_file, parse_value, read_text
from sparkinfer.driver.wording import dotted, printable, shown

__all__ = ["load_job", "parse_setting", "validated"]

Block = TypeVar("Block", bound=BaseModel)

Key = tuple[str, ...]

_EITHER_OR: dict[str, tuple[str, ...]] = {"source": SOURCE_KINDS, "sink": ("path", "table")}
"""Keys of which a block takes one: the command line's choice replaces the file's."""


def load_job(
    path: str | None,
    sets: Iterable[str] = (),
    flags: Mapping[str, Any] | None = None,
    *,
    read_text: Callable[[str], str] = read_text,
) -> JobSpec:
    """Reads a job.

    Args:
        path: the job file, or None when flags say everything.
        sets: `KEY=VALUE` texts, KEY in full (`model.path`), VALUE as YAML.
        flags: full key -> value, already typed; None values are left out.
        read_text: gives a job file's text; the default reads local files.

    Raises:
        SpecError: whatever is wrong with any of them; names the key, what is allowed, and a hint.
    """
    given = {tuple(key.split(".")): value for key, value in (flags or {}).items() if value is not None}
    overrides = [*(parse_setting(text) for text in sets), *given.items()]
    if path is None and not overrides:
        raise SpecError("nothing to run", hint="give a job file, or --images PATH --model FILE --output FOLDER")
    file = parse_job_file(read_text(path), path) if path is not None else JobFile("", {})
    data = _without_empty_blocks(file.data)
    _drop_replaced_choices(data, [key for key, value in overrides if value is not None])
    for key, value in overrides:
        _put(data, key, value)
    origins = {key[:depth]: "command line" for key, _ in overrides for depth in range(1, len(key))}
    origins.update({key: f"{file.name} line {line}" for key, line in file.lines.items()})
    origins.update({key: "command line" for key, _ in overrides})
    try:
        spec = JobSpec.model_validate(data)
    except ValidationError as error:
        raise spec_error(error, data, origins) from None
    _check_paths(spec)
    return spec


def validated(block: type[Block], data: Any, key: str) -> Block:
    """One block of the job, as the Python functions make it from their arguments.

    Args:
        block: the block's class.
        data: its keys, or a preset's name for `PreprocessSpec`.
        key: the block's key in a job, for messages: `model`.

    Raises:
        SpecError: as `load_job` would.
    """
    try:
        return block.model_validate(data)
    except ValidationError as error:
        raise spec_error(error, {key: data}, {}, block=(key,)) from None


_NULLS = ("", "~", "null", "Null", "NULL")


def parse_setting(text: str) -> tuple[Key, Any]:
    """Reads one `--set` text: `batch.size=64`, `source.keep=[label, split]`, `spark.conf.spark.driver.memory=4g`.

    A value is YAML, except that text keys take what was written as it is (`model.version=3` is "3", `*.jpg` needs no
    quotes). An empty value is null.

    Raises:
        SpecError: no `=`, no key, a key inside a plain value, or a value that is not YAML.
    """
    name, equals, raw = text.partition("=")
    if not equals or not name.strip():
        raise SpecError(f"--set {printable(text)}: needs KEY=VALUE", hint="--set model.path=resnet50.onnx")
    key = _split_key(name.strip())
    return key, _typed(key, raw.strip())


def _split_key(name: str) -> Key:
    """Splits at dots; inside a free block (`spark.conf`) the rest is one key."""
    parts = tuple(name.split("."))
    for end in range(1, len(parts)):
        info = field_at(parts[:end])
        if info is None:
            break
        if is_free_block(info.annotation):
            return (*parts[:end], ".".join(parts[end:]))
        if block_of(info.annotation) is None:
            raise SpecError(
                f"takes {type_in_words(info.annotation)}; it holds no keys, so {dotted(parts)} cannot be set",
                key=dotted(parts[:end]),
            )
    return parts


def _typed(key: Key, raw: str) -> Any:
    annotation = annotation_at(key)
    as_text = takes_text(annotation)
    try:
        value = parse_value(raw)
    except ValueError:
        if as_text:
            return raw
        value = MASK if is_secret_name(key[-1]) else shown(raw)
        raise SpecError(f"the value {value} of --set is not readable as YAML", key=dotted(key)) from None
    is_null = raw in _NULLS  # a comment, a lone tag or anchor is null for YAML too, but was meant as text
    was_quoted = isinstance(value, str) and raw[:1] in ("'", '"')
    was_list = isinstance(value, list) and takes_list_of_text(annotation)
    return value if not as_text or is_null or was_quoted or was_list else raw


def _without_empty_blocks(data: Mapping[str, Any], parent: Key = ()) -> dict[str, Any]:
    """A deep copy without blocks left empty (`batch:` and nothing below): their defaults apply."""
    kept: dict[str, Any] = {}
    for name, value in data.items():
        info = field_at((*parent, name))
        is_block = info is not None and (block_of(info.annotation) is not None or is_free_block(info.annotation))
        if is_block and value is None:
            continue
        is_nested = is_block and isinstance(value, dict)
        kept[name] = _without_empty_blocks(value, (*parent, name)) if is_nested else copy.deepcopy(value)
    return kept


def _drop_replaced_choices(data: dict[str, Any], overridden: Iterable[Key]) -> None:
    for block, choices in _EITHER_OR.items():
        chosen = {key[1] for key in overridden if len(key) > 1 and key[0] == block and key[1] in choices}
        if chosen and isinstance(data.get(block), dict):
            data[block] = {name: value for name, value in data[block].items() if name not in choices}


def _put(data: dict[str, Any], key: Key, value: Any) -> None:
    """Sets a key, making the blocks on its way."""
    block = data
    for depth, part in enumerate(key[:-1], start=1):
        inner = block.get(part)
        if inner is None:
            inner = {}
        elif part == "preprocess" and isinstance(inner, str):
            inner = {"preset": inner}
        elif not isinstance(inner, dict):
            raise SpecError(
                f"holds {shown(inner)}, which is no block of keys, so {dotted(key)} cannot be set",
                key=dotted(key[:depth]),
            )
        block[part] = inner
        block = inner
    block[key[-1]] = value


def _check_paths(spec: JobSpec) -> None:
    """Refuses paths that the system will not even look for: better now than as an error of its own in mid-job."""
    kind, checkpoint = spec.source.kind, spec.resume.checkpoint if spec.resume else None
    named: list[tuple[str, str | None]] = [
        *((f"source.{kind}", name) for name in spec.source.locations if kind != "query"),
        ("model.path", spec.model.path),
        ("model.labels", spec.model.labels),
        ("sink.path", spec.sink.path),
        ("resume.checkpoint", checkpoint),
        ("report", spec.report),
    ]
    for key, name in named:
        reason = unusable(name) if name else None
        if reason:
            raise SpecError(f"{shown(name)} cannot be used as a path: {reason}", key=key)
