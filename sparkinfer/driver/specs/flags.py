"""What the `model` commands' flags take, and errors that speak of these flags. Driver side; imports no pyspark.

The keys of a job file (`model.input`, `preprocess.layout`) are no help to a person who has no job file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sparkinfer.core.errors import SpecError, UserError
from sparkinfer.driver.specs.job_file import parse_value
from sparkinfer.driver.wording import shown

__all__ = ["flags_named", "preprocess_flag"]

_FLAGS = {
    "model": "FILE",
    "model.path": "FILE",
    "model.arch": "--arch",
    "model.labels": "--labels",
    "model.input": "--input",
    "model.output": "--output-name",
    "preprocess": "--preprocess",
    "images": "--images",
    "output": "--output",
    "int8": "--int8",
    "min_agreement": "--min-agreement",
    "threads": "--threads",
}
_SET = re.compile(r"\bset preprocess\.(\w+): (\[[^\]]*\]|[^;,( ]+)")


def preprocess_flag(text: str | None) -> str | dict[str, Any] | None:
    """What `--preprocess` says: a preset's name, or a block in YAML such as `{layout: nhwc}`.

    Raises:
        SpecError: neither.
    """
    if text is None:
        return None
    try:
        value = parse_value(text)
    except ValueError:
        value = None
    if isinstance(value, str | dict):
        return value
    raise SpecError(
        f"{shown(text)} is neither a preset's name nor a block in YAML",
        key="preprocess",
        hint="for example --preprocess imagenet, or --preprocess '{layout: nhwc, crop: 299}'",
    )


@contextmanager
def flags_named() -> Iterator[None]:
    """Raises errors about keys of a job file as errors about the flags that stand for them.

    Raises:
        UserError: what was raised inside.
    """
    try:
        yield
    except UserError as error:
        error.key = error.key and _flag(error.key)
        error.hint = error.hint and _SET.sub(r"add --preprocess '{\1: \2}'", error.hint)
        raise


def _flag(key: str) -> str:
    block = key.partition(".")[0]
    return _FLAGS.get(key) or (f"{_FLAGS[block]} ({key})" if block in _FLAGS else key)
