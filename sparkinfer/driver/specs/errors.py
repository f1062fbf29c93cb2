"""pydantic's findings about a job -> one `SpecError` that fits on a screen. Driver only; imports no pyspark.

pydantic speaks of types and of the branches of a union; a person wants the key as written, what is wrong with its
value, what would be right, and the key that was probably meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sparkinfer.core.errors import SpecError
from sparkinfer.core.secrets import MASK, is_secret_name
from sparkinfer.driver.specs.fields import (
    all_keys,
    annotation_at,
    block_of,
    field_at,
    is_free_block,
    takes_list_of_text,
    type_in_words,
)
from sparkinfer.driver.wording import dotted, printable, shortened, shown

__all__ = ["did_you_mean", "spec_error"]

Key = tuple[str, ...]

MAX_ROWS, COLUMNS = 22, 80
"""Of a terminal, without the prompt: more problems than fit are only counted."""

_BOUNDS = {
    "greater_than",
    "greater_than_equal",
    "less_than",
    "less_than_equal",
    "string_too_short",
    "too_long",
    "too_short",
    "finite_number",
}


def spec_error(
    error: ValidationError, data: Mapping[str, Any], origins: Mapping[Key, str], *, block: Key = ()
) -> SpecError:
    """Says in one error what pydantic found.

    Args:
        error: pydantic's.
        data: the job as plain data.
        origins: where each key was given ("job.yaml line 4", "command line").
        block: the block that was validated; the whole job by default.
    """
    groups: dict[Key, list[ErrorDetails]] = {}
    for details in error.errors():
        groups.setdefault(_key_of((*block, *details["loc"])), []).append(details)
    problems = [_one_problem(key, group, data, origins) for key, group in groups.items()]
    if len(problems) == 1:
        return problems[0]
    lines, left = [f"{len(problems)} problems"], MAX_ROWS - 2
    for number, problem in enumerate(problems):
        left -= sum(-(-len(line) // COLUMNS) for line in problem.render().splitlines())
        if left < 0:
            lines.append(f"and {len(problems) - number} more")
            break
        lines.append(problem.render())
    return SpecError("\n".join(lines))


def did_you_mean(key: Key) -> str | None:
    """A hint for a key that the spec does not have: the same name in another block, or a near spelling."""
    if field_at(spelt_out := (*key[:-1], *key[-1].split("."))) is not None:
        *blocks, last = spelt_out
        return f"keys with dots are for --set; in a file write {': {'.join(blocks)}: {{{last}: ...{'}' * len(blocks)}"
    siblings = [known for known in all_keys() if known[:-1] == key[:-1]]
    elsewhere = [known for known in all_keys() if known[-1] == key[-1]]
    if not elsewhere:
        close = get_close_matches(key[-1], [known[-1] for known in siblings], n=1)
        elsewhere = [known for known in siblings if known[-1] in close]
    if not elsewhere:
        close = get_close_matches(key[-1], [known[-1] for known in all_keys()], n=1, cutoff=0.8)
        elsewhere = [known for known in all_keys() if known[-1] in close]
    return f"did you mean {' or '.join('.'.join(known) for known in elsewhere)}?" if elsewhere else None


def _key_of(location: Iterable[str | int]) -> Key:
    """The key that a finding is about, without list positions and names of union branches."""
    key: Key = ()
    for part in location:
        parent = field_at(key) if key else None
        is_block = not key or (parent is not None and block_of(parent.annotation) is not None)
        is_free = parent is not None and is_free_block(parent.annotation)
        if not isinstance(part, str) or not (is_block or is_free):
            break
        key = (*key, part)
    return key


def _one_problem(key: Key, group: list[ErrorDetails], data: Mapping[str, Any], origins: Mapping[Key, str]) -> SpecError:
    name = dotted(key)
    kinds = {details["type"] for details in group}
    where = f" ({origins[key]})" if key in origins else ""
    info = field_at(key)
    meaning = info.description if info is not None else None

    if "extra_forbidden" in kinds:
        siblings = [known[-1] for known in all_keys() if known[:-1] == key[:-1]]
        return SpecError(f"unknown key{where}", key=name, allowed=siblings, hint=did_you_mean(key))
    if "missing" in kinds:
        return SpecError("is required", key=name, hint=_how_to_give(key) or meaning)
    if "value_error" in kinds:
        return SpecError(f"{_own_words(group)}{where}", key=name or None)

    value = MASK if is_secret_name(name) else _value_at(data, key, group[0]["input"])
    bounds = [details["msg"] for details in group if details["type"] in _BOUNDS]
    if bounds:
        text = bounds[0].replace("Input should ", "must ").replace("String should ", "must ").replace("Tuple", "list")
        return SpecError(f"{text}, got {shown(value)}{where}", key=name, hint=meaning)
    if kinds == {"string_pattern_mismatch"}:
        return SpecError(f"cannot be {shown(value)}{where}", key=name, allowed=[meaning or ""])
    if kinds == {"literal_error"}:
        allowed = [str(choice) for choice in get_args(annotation_at(key))]
        close = get_close_matches(str(value), allowed, n=1)
        hint = f"did you mean {close[0]}?" if close else meaning
        return SpecError(f"cannot be {shown(value)}{where}", key=name, allowed=allowed, hint=hint)
    annotation = annotation_at(key)
    hint = _how_to_write(value, kinds, annotation) or meaning
    return SpecError(f"must be {type_in_words(annotation)}, got {shown(value)}{where}", key=name, hint=hint)


def _how_to_give(key: Key) -> str | None:
    """What to add for what is missing, in the file or on the command line."""
    ways = {
        ("source",): "source: {images: PATH} in the job file, or --images PATH",
        ("model",): "model: {path: FILE} in the job file, or --model FILE",
        ("model", "path"): "model: {path: FILE} in the job file, or --model FILE",
        ("sink",): "sink: {path: FOLDER} in the job file, or --output FOLDER",
    }
    return ways.get(key)


def _how_to_write(value: Any, kinds: Iterable[str], annotation: Any) -> str | None:
    if "string_type" in kinds and not isinstance(value, dict | list | tuple | set | type(None)):
        return f'text that looks like something else needs quotes: "{_plain(value)}"'
    if takes_list_of_text(annotation) and isinstance(value, str):
        return f"write a list: [{printable(value)}]"
    return None


def _own_words(group: list[ErrorDetails]) -> str:
    return shortened(next(d["msg"].removeprefix("Value error, ") for d in group if d["type"] == "value_error"))


def _value_at(data: Mapping[str, Any], key: Key, otherwise: Any) -> Any:
    value: Any = data
    for part in key:
        if not isinstance(value, Mapping) or part not in value:
            return otherwise
        value = value[part]
    return value


def _plain(value: Any) -> str:
    return shown(value) if isinstance(value, bool | float | int) else printable(str(value))
