"""Label files. Driver side; pure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sparkinfer.core.errors import ModelError

__all__ = ["check_labels", "parse_labels", "read_label_text"]

_KEY = "model.labels"


def read_label_text(path: Path, name: str) -> str:
    """A label file's text.

    Raises:
        ModelError: it is not UTF-8.
    """
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(
            f"{name!r} is not UTF-8 text (byte {error.start})", key=_KEY, hint="one label a line, or JSON"
        ) from error


def parse_labels(text: str, name: str) -> tuple[str, ...]:
    """Labels in class order.

    Accepts one label a line (blank lines at the end are ignored), a JSON list, or a JSON object from index to label;
    in both JSON forms a label may be a list whose last item is the label, as in Keras' `imagenet_class_index.json`.

    Args:
        text: the file's text.
        name: its name, for messages.

    Raises:
        ModelError: not such a file.
    """
    stripped = text.lstrip("\ufeff").strip()
    if not stripped:
        raise ModelError(f"{name!r} is empty", key=_KEY, hint="one label a line, in class order")
    if stripped[0] not in "[{":
        return tuple(line.strip() for line in stripped.splitlines())
    try:
        data = json.loads(stripped)
    except json.JSONDecodeError as error:
        raise ModelError(f"{name!r} looks like JSON but is not: {error}", key=_KEY) from error
    if isinstance(data, dict):
        data = _in_order(data, name)
    return tuple(_label(item, name) for item in data)


def _in_order(data: dict[str, Any], name: str) -> list[Any]:
    wanted = [str(i) for i in range(len(data))]
    if set(data) != set(wanted):
        odd = sorted(set(data) ^ set(wanted))[:3]
        raise ModelError(
            f"{name!r} is a JSON object whose keys are not 0 to {len(data) - 1} (look at {', '.join(odd)})",
            key=_KEY,
            allowed=['["cat", "dog"]', '{"0": "cat", "1": "dog"}'],
        )
    return [data[key] for key in wanted]


def _label(item: object, name: str) -> str:
    if isinstance(item, list) and item:
        item = item[-1]
    if not isinstance(item, str | int | float):
        raise ModelError(f"{name!r} holds {item!r}, which is not a label", key=_KEY)
    return str(item)


def check_labels(labels: tuple[str, ...], num_classes: int, name: str) -> None:
    """Refuses labels that do not fit the model.

    Raises:
        ModelError: names both numbers.
    """
    if len(labels) != num_classes:
        hint = "a class for 'background' in front is the usual reason" if abs(len(labels) - num_classes) == 1 else None
        raise ModelError(
            f"{name!r} has {len(labels)} labels, the model has {num_classes} classes",
            key=_KEY,
            hint=hint or "give the labels file that belongs to this model",
        )
