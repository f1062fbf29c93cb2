"""Unfinished files of one run apart from those of others, where Spark commits right into the target. Driver side.

Hadoop's `FileOutputCommitter` keeps them in `TARGET/_temporary/ATTEMPT`. Spark's attempt is always 0, so two runs that
write one table share a folder: each commits the tasks of the other, and the first to end clears all of it away. A
number of its own keeps a run's tasks apart, also from those of a dead run. But a run that fails still clears the whole
of `_temporary`, whatever it is told: that is found out at the end, by a file that is gone too.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator

from pyspark.sql import SparkSession

from sparkinfer.core.errors import JobFailedError
from sparkinfer.driver.frames import settings
from sparkinfer.driver.listing import JAVA_ERRORS, child, hadoop_conf, hadoop_path, is_missing

__all__ = ["own_pending"]

_ATTEMPT = "mapreduce.job.application.attempt.id"
"""`MRJobConfig.APPLICATION_ATTEMPT_ID`, a Java int."""
_KEEP = "mapreduce.fileoutputcommitter.cleanup.skipped"
_FACTORY = "mapreduce.outputcommitter.factory"
_PROTOCOL = "spark.sql.sources.commitProtocolClass"
_USUAL_PROTOCOL = "SQLHadoopMapReduceCommitProtocol"


@contextlib.contextmanager
def own_pending(spark: SparkSession, folder: str, run_id: str) -> Iterator[None]:
    """Gives Spark's writes into a folder a pending folder of their own, by session settings, and clears it away.

    Other committers than Hadoop's usual one keep runs apart by themselves, and are left alone.

    Args:
        spark: the session.
        folder: what is written to.
        run_id: of the run, for the message.

    Raises:
        JobFailedError: another job has cleared away unfinished files of this run: some of its rows are missing.
    """
    path, fs = hadoop_path(spark, folder)
    if not _is_usual_committer(spark, fs.getUri().getScheme()):
        yield
        return
    attempt = str(1 + secrets.randbelow(2**31 - 1))
    pending = child(spark, path, "_temporary")
    # Beside the attempt's folder: everything in that is committed.
    sign = child(spark, pending, f"writing-{attempt}")
    fs.create(sign, True).close()
    cleared = JobFailedError(
        f"another job that wrote to {path.toString()!r} has cleared away unfinished files of this one: rows may be "
        f"missing of those with run_id = {run_id!r}",
        key="sink",
        hint="delete these rows and run it again, one job at a time",
    )
    try:
        with settings(spark, {_ATTEMPT: attempt, _KEEP: "true"}):
            yield
        if not fs.exists(sign):
            raise cleared
    except JAVA_ERRORS as error:
        # By its name: a run that fails for another reason has cleared away its own files, the sign too.
        if is_missing(error) and f"_temporary/{attempt}" in str(error):
            raise cleared from error
        raise
    finally:
        with contextlib.suppress(*JAVA_ERRORS):
            fs.delete(child(spark, pending, attempt), True)
            fs.delete(sign, False)
            fs.delete(pending, False)  # fails while others write


def _is_usual_committer(spark: SparkSession, scheme: str) -> bool:
    conf = hadoop_conf(spark)
    others = [conf.get(f"{_FACTORY}.{name}") for name in ("class", f"scheme.{scheme}")]
    return not any(others) and str(spark.conf.get(_PROTOCOL)).endswith(_USUAL_PROTOCOL)
