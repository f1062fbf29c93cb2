"""Writes the generated parts of README.md: the job file's keys, the prediction table, the error codes.

    python -m sparkinfer.driver.specs.reference --write README.md
    python -m sparkinfer.driver.specs.reference --check README.md     # exit status 1 when it is out of date

A generated part stands between `<!-- generated: NAME -->` and `<!-- end: NAME -->`. Driver side; imports no pyspark.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sparkinfer.core.errors import ErrorCode
from sparkinfer.core.schema import PREDICTION_COLUMNS
from sparkinfer.core.spec import JobSpec
from sparkinfer.driver.specs.fields import block_of, type_in_words

__all__ = ["error_codes", "fill", "job_file", "main", "prediction_table"]


def job_file() -> str:
    """The job file's keys as Markdown: one table for the top level and one for each block."""
    parts = [_block_table(JobSpec)]
    for name, info in JobSpec.model_fields.items():
        block = block_of(info.annotation)
        if block is not None:
            summary = inspect.cleandoc(block.__doc__ or "").splitlines()[0]
            parts.append(f"**`{name}`** {summary}\n\n{_block_table(block, f'{name}.')}")
    return "\n\n".join(parts)


def prediction_table() -> str:
    """The prediction table's columns as Markdown."""
    return _table(
        ("column", "type", "what it holds"), ((f"`{c.name}`", f"`{c.ddl}`", c.meaning) for c in PREDICTION_COLUMNS)
    )


def error_codes() -> str:
    """The error codes as Markdown."""
    return _table(("code", "stage", "meaning"), ((f"`{c}`", str(c.stage), c.meaning) for c in ErrorCode))


_PARTS = {"job-file": job_file, "prediction-table": prediction_table, "error-codes": error_codes}


def fill(text: str) -> str:
    """Writes every generated part between its markers.

    Raises:
        ValueError: a part's markers are missing.
    """
    for name, content in _PARTS.items():
        opening, closing = f"<!-- generated: {name} -->", f"<!-- end: {name} -->"
        pattern = re.compile(f"{re.escape(opening)}.*?{re.escape(closing)}", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"no place for {name}: {opening} and {closing} are missing")
        filled = f"{opening}\n\n{content()}\n\n{closing}"
        text = pattern.sub(lambda _, filled=filled: filled, text)  # type: ignore[misc]
    return text


def main(args: Sequence[str] | None = None) -> int:
    """Checks or writes a file; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m sparkinfer.driver.specs.reference", description=fill.__doc__)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="exit status 1 when a part is out of date")
    action.add_argument("--write", action="store_true", help="bring the file up to date")
    parser.add_argument("file", type=Path)
    options = parser.parse_args(args)
    old = options.file.read_text(encoding="utf-8")
    new = fill(old)
    if options.write:
        options.file.write_text(new, encoding="utf-8")
    elif new != old:
        sys.stderr.write(f"{options.file} is out of date: make readme\n")
        return 1
    return 0


def _block_table(block: type[BaseModel], prefix: str = "") -> str:
    rows = (
        (f"`{prefix}{name}`", _type(info), _default(info), _meaning(info)) for name, info in block.model_fields.items()
    )
    return _table(("key", "value", "default", "meaning"), rows)


def _type(info: FieldInfo) -> str:
    block = block_of(info.annotation)
    return "a block" if block is not None else type_in_words(info.annotation)


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "required"
    if block_of(info.annotation) is not None:
        return ""
    return f"`{_as_yaml(info.get_default(call_default_factory=True))}`"


def _as_yaml(value: Any) -> str:
    """A default as it would stand in a job file, on one line."""
    plain = value.value if isinstance(value, Enum) else list(value) if isinstance(value, tuple) else value
    text = yaml.safe_dump(plain, default_flow_style=True, width=1000).removesuffix("\n").removesuffix("\n...")
    return text.strip()


def _meaning(info: FieldInfo) -> str:
    block = block_of(info.annotation)
    return info.description or ("see below" if block is not None else "")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(_cell(text) for text in row)} |" for row in cells)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
