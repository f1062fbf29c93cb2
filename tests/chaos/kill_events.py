"""When Spark gave the tasks of a lost process to another: read out of its event logs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["Tasks"]

_ENDS_OF_THEIR_OWN = {"Success", "TaskKilled", "TaskCommitDenied"}


class Tasks:
    """The tasks of every application in a folder of uncompressed event logs.

    Args:
        folder: `spark.eventLog.dir`; a log whose driver was killed may lack its last lines.
    """

    def __init__(self, folder: Path) -> None:
        self._starts: dict[tuple[Any, ...], list[float]] = defaultdict(list)
        self._lost: dict[tuple[str, str], list[tuple[tuple[Any, ...], float, float]]] = defaultdict(list)
        for file in list(folder.iterdir()):
            app = file.name.removesuffix(".inprogress")
            for event in _events(file):
                self._add(app, event)

    def _add(self, app: str, event: dict[str, Any]) -> None:
        info = event.get("Task Info")
        if info is None:
            return
        task = (app, event["Stage ID"], event["Stage Attempt ID"], info["Index"])
        launched = info["Launch Time"] / 1000
        if event["Event"] == "SparkListenerTaskStart":
            self._starts[task].append(launched)
        elif event["Event"] == "SparkListenerTaskEnd" and event["Task End Reason"]["Reason"] not in _ENDS_OF_THEIR_OWN:
            lost = (task, launched, info["Finish Time"] / 1000)
            self._lost[app, info["Executor ID"]].append(lost)

    def recovery(self, app: str, executor: str, at: float) -> float | None:
        """Seconds until every task that ran on an executor at a moment was started again; None: none was lost."""
        waits = [
            min((start - at for start in self._starts[task] if start >= at), default=None)
            for task, launched, ended in self._lost[app, executor]
            if launched <= at <= ended
        ]
        known = [wait for wait in waits if wait is not None]
        return max(known, default=None)

    def first_start(self, after: float, since: float) -> float | None:
        """Seconds since a moment until the first task that was started after another; None: none was."""
        return min((s - since for starts in self._starts.values() for s in starts if s >= after), default=None)


def _events(file: Path) -> Iterator[dict[str, Any]]:
    try:
        text = file.read_text("utf-8", errors="replace")
    except FileNotFoundError:  # its driver is just ending, and has renamed it
        text = file.with_suffix("").read_text("utf-8", errors="replace")
    for line in text.splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # cut off when the driver was killed
        yield event
