"""Why a job failed, in one line. Driver side; imports no pyspark."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sparkinfer.core import errors
from sparkinfer.core.errors import NOTE_HINT, NOTE_KEY, UserError
from sparkinfer.core.secrets import redacted

__all__ = ["last_cause", "told_by_workers", "worker_error"]

MAX_CAUSE_CHARS = 500

_OURS = re.compile(
    rf"^{re.escape(errors.__name__)}\.(\w+): (.*)$(?:\n{NOTE_KEY}(.*)$)?(?:\n{NOTE_HINT}(.*)$)?", re.MULTILINE
)


@contextmanager
def told_by_workers() -> Iterator[None]:
    """Raises an error of ours that ended a task on an executor as itself: with its key, its hint, its exit status.

    Raises:
        UserError: what a Python worker has raised.
    """
    try:
        yield
    except Exception as error:
        found = _of_worker(error)
        if found is None:
            raise
        raise found from error


def _of_worker(error: BaseException) -> UserError | None:
    while error.__cause__ is not None:
        error = error.__cause__
    return worker_error(str(error))


def worker_error(text: str) -> UserError | None:
    """The error of ours that a Python worker has raised, out of the stack traces that Spark tells; None: another's."""
    told = _OURS.search(text)
    kind = getattr(errors, told[1], None) if told else None
    if told is None or not (isinstance(kind, type) and issubclass(kind, UserError)):
        return None
    return kind(told[2], key=told[3], hint=told[4])


def last_cause(error: BaseException) -> str:
    """The line that says why, out of the pages that Spark and Java print.

    That is the last line of a Python worker's traceback where there is one, else Java's last `Caused by:`, else the
    first line of the error at the end of Python's own chain of causes.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    tracebacks = [number for number, line in enumerate(lines) if "Traceback (most recent call last)" in line]
    if tracebacks:
        after = (line for line in lines[tracebacks[-1] + 1 :] if not line.startswith((" ", "\t")))
        cause = next(after, lines[0])
    else:
        causes = [line for line in lines if line.lstrip().startswith("Caused by: ")]
        cause = causes[-1].strip().removeprefix("Caused by: ") if causes else f"{type(error).__name__}: {lines[0]}"
    return redacted(cause)[:MAX_CAUSE_CHARS]
