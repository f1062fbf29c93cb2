"""Spark's own complaints about a source, as one line that a person can act on. Driver side."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from sparkinfer.core.errors import SourceError
from sparkinfer.driver.listing import java_reason

__all__ = ["closest", "explained", "quiet", "sentence"]

_NOISE = re.compile(r"^\[[A-Z0-9_.]+\] |;? *SQLSTATE: \w+|;? *\(?line \d+,? pos \d+\)?;?$")
"""Error class, SQLSTATE and position, all of which stand around the sentence."""


@contextmanager
def explained(key: str, *, hint: str | None = None, allowed: Iterable[str] = ()) -> Iterator[None]:
    """Turns whatever Spark says about a source into a `SourceError`.

    Args:
        key: the setting that is to blame.
        hint: what to do about it.
        allowed: what would be accepted.
    """
    try:
        with quiet():
            yield
    except PySparkException as error:
        raise SourceError(sentence(str(error)), key=key, hint=hint, allowed=allowed) from error
    except Py4JJavaError as error:
        raise SourceError(java_reason(error), key=key, hint=hint, allowed=allowed) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps pyspark 4 from writing the exceptions that we handle, Java stack and all, to stderr."""
    try:
        from pyspark.logger import PySparkLogger
    except ImportError:  # pyspark 3.5 writes nothing
        yield
        return
    loggers = [PySparkLogger.getLogger(name) for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger")]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was


def closest(name: str, known: Iterable[str]) -> str | None:
    """A hint with the most similar known name, if there is one."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}?" if near else None


def sentence(text: str) -> str:
    """The first line of what Spark says, without error class, SQLSTATE and position."""
    line = next((line for line in text.splitlines() if line.strip()), "Spark gives no reason")
    previous = None
    while line != previous:
        previous, line = line, _NOISE.sub("", line).strip()
    return line
