"""The spec's keys and types in words: for messages, for `--set`, for the README's reference. Driver; no pyspark."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from sparkinfer.core.spec import JobSpec

__all__ = [
    "all_keys",
    "annotation_at",
    "block_of",
    "field_at",
    "is_free_block",
    "takes_list_of_text",
    "takes_text",
    "type_in_words",
]

Key = tuple[str, ...]

_SCALARS = {str: "text", int: "a whole number", float: "a number", bool: "true or false", type(None): "null"}
_PLURALS = {"text": "texts", "a whole number": "whole numbers", "a number": "numbers"}


def block_of(annotation: Any) -> type[BaseModel] | None:
    """The model behind a block's annotation, one that may be left out included; None when it is no block."""
    members = [member for member in _members(annotation) if member is not type(None)]
    only = members[0] if len(members) == 1 else None
    return only if isinstance(only, type) and issubclass(only, BaseModel) else None


def is_free_block(annotation: Any) -> bool:
    """True for a block whose keys are the person's own (`spark.conf`)."""
    return get_origin(annotation) is dict


def field_at(key: Key) -> FieldInfo | None:
    """The spec's field of a full key (`("model", "path")`), or None when the spec has no such key."""
    block: type[BaseModel] | None = JobSpec
    found: FieldInfo | None = None
    for part in key:
        if block is None or part not in block.model_fields:
            return None
        found = block.model_fields[part]
        block = block_of(found.annotation)
    return found


def annotation_at(key: Key) -> Any:
    """The type of a full key's value, values of a free block included, or None when the spec has no such key."""
    info, parent = field_at(key), field_at(key[:-1])
    if info is not None:
        return info.annotation
    if parent is not None and is_free_block(parent.annotation):
        return get_args(parent.annotation)[1]
    return None


def all_keys(block: type[BaseModel] = JobSpec, parent: Key = ()) -> Iterator[Key]:
    """Every key of the spec, blocks before their keys."""
    for name, info in block.model_fields.items():
        yield (*parent, name)
        inner = block_of(info.annotation)
        if inner is not None:
            yield from all_keys(inner, (*parent, name))


def takes_text(annotation: Any) -> bool:
    """True when free text is a value, and no number or truth value is: such a value needs no YAML typing."""
    members = set(_members(annotation))
    return str in members and not members & {int, float, bool}


def takes_list_of_text(annotation: Any) -> bool:
    """True when a list of texts is a value."""
    return any(get_origin(member) is tuple and str in get_args(member) for member in _members(annotation))


def type_in_words(annotation: Any) -> str:
    """A field's type as a person says it.

    Examples: `a whole number or auto`; `text, a list of texts or null`; `error, overwrite or append`.
    """
    words: list[str] = []
    for member in _members(annotation):
        if get_origin(member) is Literal:
            words.extend(str(value) for value in get_args(member))
        else:
            words.append(_member_in_words(member))
    *most, last = dict.fromkeys(words)
    return f"{', '.join(most)} or {last}" if most else last


def _members(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a union, or the one type itself; constraints stripped."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(inner for member in get_args(annotation) for inner in _members(member))
    return (annotation,)


def _member_in_words(member: Any) -> str:
    if member in _SCALARS:
        return _SCALARS[member]
    if get_origin(member) is tuple:
        elements = [element for element in get_args(member) if element is not Ellipsis]
        word = type_in_words(elements[0])
        count = "" if Ellipsis in get_args(member) else f"{len(elements)} "
        return f"a list of {count}{_PLURALS.get(word, word)}"
    return "a block of keys"
