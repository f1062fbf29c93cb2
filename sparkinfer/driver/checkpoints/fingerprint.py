"""What a checkpoint belongs to: the job as far as it decides what stands in the prediction table. Driver side."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from sparkinfer.core.secrets import redacted_data
from sparkinfer.core.spec import JobSpec
from sparkinfer.driver.model import Inspected

__all__ = ["RETRY_MAY_CHANGE", "differences", "fingerprint"]

_RESULT_NEUTRAL = {
    "model": {"path", "labels", "name", "device", "providers", "fold", "digest", "trusted"},
    "source": {"limit"},
    "postprocess": {"check"},
}
"""Keys that change where or how fast things run, or that another field says better (digests), but no prediction."""

RETRY_MAY_CHANGE = frozenset({"source.max_bytes", "preprocess.max_pixels"})
"""Limits: they decide whether a row fails and never what is predicted of one that does not, and to raise them is what
mends TOO_LARGE and TOO_MANY_PIXELS. The limits of `errors` and `batch` are in no fingerprint."""


def fingerprint(
    spec: JobSpec, found: Inspected, keys: Sequence[str], qualified: Callable[[str], str]
) -> dict[str, Any]:
    """Everything that changes rows of the prediction table, as plain JSON.

    Args:
        spec: the job.
        found: its model; the file's digest counts, not its path.
        keys: columns that lead the prediction table.
        qualified: the full form of a path, so that one place has one name.

    Returns:
        Nested mappings of JSON values; equal for two jobs whose rows would be equal.
    """
    labels = hashlib.sha256("\n".join(found.labels).encode()).hexdigest() if found.labels is not None else None
    source = spec.source.model_dump(mode="json", exclude=_RESULT_NEUTRAL["source"])
    if spec.source.kind in {"images", "parquet"} or (spec.source.kind == "paths" and "/" in spec.source.locations[0]):
        source[spec.source.kind] = [qualified(location) for location in spec.source.locations]
    sink = spec.sink.model_dump(mode="json", include={"path", "table", "format", "partition_by"})
    if spec.sink.path:
        sink["path"] = qualified(spec.sink.path)
    content = {
        "source": source,
        "model": {
            **found.spec.model_dump(mode="json", exclude=_RESULT_NEUTRAL["model"]),
            "name": found.spec.display_name,
            "digest": found.digest,
            "labels_digest": labels,
        },
        "preprocess": spec.preprocess.model_dump(mode="json"),
        "postprocess": spec.postprocess.model_dump(mode="json", exclude=_RESULT_NEUTRAL["postprocess"]),
        "sink": sink,
        "columns": list(keys),
    }
    plain: dict[str, Any] = json.loads(json.dumps(redacted_data(content)))
    return plain


def differences(then: Mapping[str, Any], now: Mapping[str, Any], *, but: Collection[str] = frozenset()) -> list[str]:
    """The keys whose values differ, each in a line for a person: `preprocess.crop: 224 then, 192 now`.

    Args:
        then: nested mappings.
        now: likewise.
        but: dotted keys that may differ.
    """
    before, after = dict(_leaves(then)), dict(_leaves(now))
    keys = dict.fromkeys([*before, *after])
    missing = object()
    return [
        f"{key}: {_said(before.get(key, missing), missing)} then, {_said(after.get(key, missing), missing)} now"
        for key in keys
        if key not in but and before.get(key, missing) != after.get(key, missing)
    ]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping) or not value:
        yield path, value
        return
    for key, inner in value.items():
        yield from _leaves(inner, f"{path}.{key}" if path else str(key))


def _said(value: Any, missing: object) -> str:
    return "absent" if value is missing else json.dumps(value, ensure_ascii=False)
