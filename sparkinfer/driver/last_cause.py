"""Why a job failed, in one line. Driver side; imports no pyspark."""

from __future__ import annotations

from sparkinfer.core.secrets import redacted

__all__ = ["last_cause"]

MAX_CAUSE_CHARS = 500


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
