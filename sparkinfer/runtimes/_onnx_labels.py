"""Class labels that exporters leave in an ONNX file's metadata. Executor side (the driver's inspection process)."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping

__all__ = ["find_labels"]

_KEYS = ("labels", "names", "classes", "class_names", "id2label")


def find_labels(metadata: Mapping[str, str]) -> tuple[str, ...] | None:
    """Labels in class order, or None when the metadata holds none.

    Understood are a JSON list, a JSON object `{"0": "cat"}` (or its inverse `{"cat": 0}`), the Python literal that
    Ultralytics writes (`{0: 'cat'}`), and one label a line.
    """
    for key in _KEYS:
        labels = _parse(metadata.get(key, ""))
        if labels:
            return labels
    return None


def _parse(text: str) -> tuple[str, ...] | None:
    value = _literal(text.strip())
    if isinstance(value, dict):
        return _in_class_order(value)
    if isinstance(value, list | tuple):
        return tuple(str(label) for label in value)
    lines = text.strip().splitlines()
    return tuple(line.strip() for line in lines) if len(lines) > 1 else None


def _literal(text: str) -> object:
    if not text.startswith(("[", "{", "(")):
        return None
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return None


def _in_class_order(value: Mapping[object, object]) -> tuple[str, ...] | None:
    """Labels of `{index: label}` or `{label: index}` when the indices are exactly 0 to n-1."""
    pairs = list(value.items())
    if pairs and all(isinstance(index, int) for _, index in pairs):
        pairs = [(index, label) for label, index in pairs]
    try:
        by_index = {int(str(index)): str(label) for index, label in pairs}
    except ValueError:
        return None
    if sorted(by_index) != list(range(len(value))):
        return None
    return tuple(by_index[index] for index in range(len(by_index)))
