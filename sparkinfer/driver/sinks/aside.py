"""What is written beside a target, under hidden names, and who still writes it. Driver side.

    .NAME.RUN.new     the output of a run that is not whole yet
    .NAME.RUN.old     what it replaces, between two renames
    .NAME.RUN.alive   which process runs it; touched every `BEAT_SECONDS`, made first and removed last

Rows that are added to a folder are written in it, NAME being `added`.

A run that is killed leaves its names behind. The next one that writes the same target removes them when their process
is gone: known at once on the same machine, after `SILENT_SECONDS` without a touch elsewhere. A run that was silent so
long without being dead finds its sign gone, and commits nothing (`Sign.check`).
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread
from typing import Any

from pyspark.sql import SparkSession

from sparkinfer.core.errors import SinkError, UserError
from sparkinfer.driver.checkpoints.owner import Owner
from sparkinfer.driver.listing import JAVA_ERRORS, child, hadoop_path, is_missing, java_reason, names_in, read_bytes
from sparkinfer.driver.sinks.append import take_out

__all__ = ["Sign", "kept_alive", "sibling"]

log = logging.getLogger(__name__)

BEAT_SECONDS = 30.0
"""Between two touches."""

SILENT_SECONDS = 600.0
"""Twenty touches missed: a file system that is away, or clocks that differ, explain less."""

_KEEPS_TIMES = {"file", "hdfs", "viewfs"}
"""File systems whose `setTimes` does something; elsewhere silence says nothing."""


def sibling(spark: SparkSession, path: Any, name: str) -> Any:
    """A Hadoop path beside another."""
    return child(spark, path.getParent(), name)


class Sign:
    """The sign of life of one run at one target.

    Args:
        spark: the session.
        target: qualified Hadoop path.
        run_id: of the run.
    """

    def __init__(self, spark: SparkSession, target: Any, run_id: str) -> None:
        self.path = sibling(spark, target, f".{target.getName()}.{run_id}.alive")
        _, self._fs = hadoop_path(spark, target.toString())
        self._name = target.toString()
        self._run_id = run_id

    def make(self) -> None:
        """Writes it."""
        stream = self._fs.create(self.path, True)
        try:
            stream.write(json.dumps(Owner.this(self._run_id).content).encode())
        finally:
            stream.close()

    def touch(self) -> None:
        """Says that the run is alive; does not make a sign that is gone again."""
        try:
            self._fs.setTimes(self.path, int(time.time() * 1000), -1)
        except JAVA_ERRORS as error:
            log.info("%s: %s", self.path.toString(), java_reason(error))

    def check(self) -> None:
        """Raises SinkError when another run has taken this one for dead, and has removed what it wrote."""
        if not self._fs.exists(self.path):
            raise SinkError(
                f"this run was silent for so long that another one, which writes {self._name!r} too, has removed its "
                "unfinished output",
                key="sink.path",
                hint="run it again, and let one job at a time write an output",
            )

    def remove(self) -> None:
        """Lets go."""
        self._fs.delete(self.path, False)


@contextmanager
def kept_alive(spark: SparkSession, target: Any, run_id: str) -> Iterator[Sign]:
    """Keeps a sign of life beside a target, and removes what dead runs have left there, before and after.

    Args:
        spark: the session.
        target: qualified Hadoop path.
        run_id: of this run.
    """
    _, fs = hadoop_path(spark, target.toString())
    fs.mkdirs(target.getParent())
    sign = Sign(spark, target, run_id)
    stop = Event()
    heart = Thread(target=_keep_touching, args=(sign, stop), name="sparkinfer-alive", daemon=True)
    try:
        sign.make()
        heart.start()
        _sweep(spark, target, run_id)
        yield sign
        _sweep(spark, target, run_id)
    finally:
        stop.set()
        if heart.ident is not None:
            heart.join()
        sign.remove()


def _keep_touching(sign: Sign, stop: Event) -> None:
    while not stop.wait(BEAT_SECONDS):
        sign.touch()


def _sweep(spark: SparkSession, target: Any, own: str) -> None:
    """Removes what dead runs have left beside a target; what cannot be removed stays for the next run."""
    known = re.compile(rf"\.{re.escape(target.getName())}\.([0-9a-f]{{32}})\.(new|old|alive)")
    try:
        left: dict[str, set[str]] = defaultdict(set)
        for name in names_in(spark, target.getParent().toString()) or ():
            if (found := known.fullmatch(name)) and found[1] != own:
                left[found[1]].add(found[2])
        for run_id, kinds in left.items():
            # The sign is there before everything else and goes after it: without one, nobody is there.
            if "alive" not in kinds or _is_dead(spark, target, run_id):
                _remove(spark, target, run_id, kinds)
    except (*JAVA_ERRORS, UserError) as error:
        log.warning("what dead runs have left beside %s stays: %s", target.toString(), error)


def _is_dead(spark: SparkSession, target: Any, run_id: str) -> bool:
    sign = Sign(spark, target, run_id)
    _, fs = hadoop_path(spark, target.toString())
    try:
        touched = fs.getFileStatus(sign.path).getModificationTime() / 1000
        content = json.loads(read_bytes(spark, sign.path.toString(), "sink.path"))
    except JAVA_ERRORS as error:
        if is_missing(error):
            return False  # it has just ended, and cleans up by itself
        raise
    except ValueError:
        content = {}  # killed while it wrote the sign, or writes it now
    owner = Owner(content)
    if owner.is_here:
        return owner.is_dead
    return fs.getUri().getScheme() in _KEEPS_TIMES and time.time() - touched > SILENT_SECONDS


def _remove(spark: SparkSession, target: Any, run_id: str, kinds: set[str]) -> None:
    """The sign first: a run that is alive after all must not commit what is half removed."""
    _, fs = hadoop_path(spark, target.toString())
    for kind in ("alive", "new", "old"):
        if kind not in kinds or (kind == "old" and not fs.exists(target)):
            continue  # nobody knows why it has no successor: it goes when there is one
        path = sibling(spark, target, f".{target.getName()}.{run_id}.{kind}")
        if kind == "new":
            take_out(spark, path)
        fs.delete(path, True)
        log.warning("removed %s: the run that wrote it is dead", path.toString())
