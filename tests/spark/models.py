"""Fake models for Spark tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import sparkinfer as si
from tests.executor.chain import RAW

__all__ = ["fake_model", "fake_model_file", "worker_calls"]


def fake_model_file(folder: Path, **options: Any) -> Path:
    """A fake model of three classes that logs its calls in `folder`."""
    path = folder / "colours.fake"
    content = {"num_classes": 3, "labels": ["red", "green", "blue"], "log": str(folder / "calls.jsonl"), **options}
    path.write_text(json.dumps(content))
    return path


def fake_model(folder: Path, *, embedding: str | None = None, version: str | None = None, **options: Any) -> si.Model:
    """The same, described for `si.predict`; sees pixel values as they are."""
    path = fake_model_file(folder, **options)
    return si.model(
        path, preprocess=RAW, activation="none", check=False, embedding=embedding, version=version, batch_size=4
    )


def worker_calls(folder: Path, event: str) -> list[int]:
    """Rows of each call by a Spark worker: the driver's inspection, in a process of its own, comes first."""
    log = folder / "calls.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [line["rows"] for line in lines if line["event"] == event and line["pid"] != lines[0]["pid"]]
