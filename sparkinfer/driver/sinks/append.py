"""Finished files that move into a folder of others. Driver side.

Spark's committer keeps what is unfinished in `_temporary` of the target, of all who write there, and the first of them
that ends clears it away. So rows are added in another way: written by Spark into a hidden folder of the run, and moved
when they are whole. Every name holds the id of Spark's write, so none meets another.

The files are listed before the first one moves, and the list goes when the last one has. A run that fails or dies on
the way is undone by that list, by itself or by the next run: one that was interrupted has added nothing.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from pyspark.sql import SparkSession

from sparkinfer.core.errors import SinkError
from sparkinfer.driver.listing import child, hadoop_path, read_bytes, write_text
from sparkinfer.driver.paths import is_hidden

__all__ = ["is_moving", "move_in", "take_out"]

log = logging.getLogger(__name__)

_LIST = "_moved.json"
"""In the folder that is moved: names in the target, relative to where that folder lies."""

_SUCCESS = "_SUCCESS"


def move_in(spark: SparkSession, aside: Any, target: Any) -> None:
    """Moves all files of a finished folder into another one, partitions to partitions.

    Args:
        spark: the session.
        aside: qualified Hadoop path; in `target`, or beside it.
        target: qualified Hadoop path of a folder.

    Raises:
        SinkError: a file cannot be moved; then none is.
    """
    _, fs = hadoop_path(spark, target.toString())
    names = _files(fs, aside)
    within = "" if aside.getParent().equals(target) else f"{target.getName()}/"
    write_text(spark, child(spark, aside, _LIST).toString(), json.dumps([f"{within}{name}" for name in names]))
    try:
        for folder in sorted({name.rpartition("/")[0] for name in names} - {""}):
            fs.mkdirs(child(spark, target, folder))
        for name in names:
            if not fs.rename(child(spark, aside, name), child(spark, target, name)):
                raise SinkError(f"{name} cannot be moved into {target.toString()!r}", key="sink.path")
        fs.delete(child(spark, aside, _LIST), False)  # the rows are there to stay
    except BaseException:
        take_out(spark, aside)
        raise
    if fs.exists(child(spark, aside, _SUCCESS)):
        fs.create(child(spark, target, _SUCCESS), True).close()


def is_moving(spark: SparkSession, aside: Any) -> bool:
    """Whether files of this folder may have moved while others have not."""
    _, fs = hadoop_path(spark, aside.toString())
    return bool(fs.exists(child(spark, aside, _LIST)))


def take_out(spark: SparkSession, aside: Any) -> None:
    """Removes what an interrupted `move_in` of this folder has moved; nothing where there was none."""
    _, fs = hadoop_path(spark, aside.toString())
    written = child(spark, aside, _LIST)
    if not fs.exists(written):
        return
    try:
        names = json.loads(read_bytes(spark, written.toString(), "sink.path"))
    except ValueError:
        return  # killed while it wrote the list: nothing had moved
    if sum(bool(fs.delete(child(spark, aside.getParent(), name), False)) for name in names):
        log.warning("took out of %s what an interrupted run had added to it", aside.getParent().toString())
    fs.delete(written, False)


def _files(fs: Any, folder: Any) -> list[str]:
    """Names of all data files below a folder, relative to it."""
    start = len(folder.toString()) + 1
    found = []
    files = fs.listFiles(folder, True)
    while files.hasNext():
        name = files.next().getPath().toString()[start:]
        if not any(map(is_hidden, name.split("/"))):
            found.append(name)
    return sorted(found)
