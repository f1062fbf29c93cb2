"""Checks a dashboard against Grafana's schema, as its Foundation SDK has it: classes generated from that schema.

The SDK reads JSON without looking: it passes over keys that it does not know, and believes every value. So what it has
read is compared with the types that its classes declare, and what it writes again with what was given.
"""

from __future__ import annotations

import enum
import json
import types
import warnings
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

with warnings.catch_warnings():
    # The SDK would rather see the second version of the schema, which Grafana before 12 cannot import.
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

__all__ = ["problems"]


def problems(dashboard: dict[str, Any]) -> list[str]:
    """What is wrong with a dashboard, each with its place; empty when nothing is."""
    register_default_plugins()
    read = Dashboard.from_json(dashboard)
    written = json.loads(JSONEncoder().encode(read))
    return [*_lost(dashboard, written, "dashboard"), *_wrong(read, "dashboard")]


def _lost(given: Any, written: Any, place: str) -> Iterator[str]:
    """Keys and values that the schema has no room for."""
    if isinstance(given, dict) and isinstance(written, dict):
        for key, value in given.items():
            if key in written:
                yield from _lost(value, written[key], f"{place}.{key}")
            else:
                yield f"{place}.{key}: no such key"
    elif isinstance(given, list) and isinstance(written, list) and len(given) == len(written):
        for index, (one, other) in enumerate(zip(given, written, strict=True)):
            yield from _lost(one, other, f"{place}[{index}]")
    elif given != written:
        yield f"{place}: {given!r} became {written!r}"


def _wrong(value: Any, place: str) -> Iterator[str]:
    """Attributes of an object of the SDK whose values are not of their declared types."""
    for name, hint in get_type_hints(type(value)).items():
        yield from _mismatch(getattr(value, name), hint, f"{place}.{name}")


def _mismatch(value: Any, hint: Any, place: str) -> Iterator[str]:
    origin, arguments = get_origin(hint), get_args(hint)
    if hasattr(value, "to_json"):
        if isinstance(hint, type) and hint is not object and not isinstance(value, hint):
            yield f"{place}: {type(value).__name__}, expected {hint.__name__}"
        yield from _wrong(value, place)
    elif origin in (Union, types.UnionType):
        found = [list(_mismatch(value, one, place)) for one in arguments]
        yield from min(found, key=len)
    elif origin is list and isinstance(value, list):
        for index, one in enumerate(value):
            yield from _mismatch(one, arguments[0], f"{place}[{index}]")
    elif origin is dict and isinstance(value, dict):
        for key, one in value.items():
            yield from _mismatch(one, arguments[1], f"{place}.{key}")
    elif hasattr(hint, "from_json") and isinstance(value, dict):  # the SDK leaves some inner ones as they came
        inner = hint.from_json(value)
        yield from _lost(value, json.loads(JSONEncoder().encode(inner)), place)
        yield from _wrong(inner, place)
    elif not _is_a(value, hint):
        yield f"{place}: {value!r} is no {getattr(hint, '__name__', hint)}"


def _is_a(value: Any, hint: Any) -> bool:
    if hint in (object, Any):
        return True
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if hint is None or hint is type(None):
        return value is None
    if not isinstance(hint, type):
        return False
    if issubclass(hint, enum.Enum):
        return value in [member.value for member in hint]
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else hint)
