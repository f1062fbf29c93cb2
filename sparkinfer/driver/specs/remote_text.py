"""A job file on HDFS or another Hadoop file system, read before there is a session. Driver side.

The job file says what the session shall be, so only the Java that spark-submit has started can read it.
"""

from __future__ import annotations

from typing import Any

from pyspark import SparkConf, SparkContext

from sparkinfer.core.errors import SpecError
from sparkinfer.driver.listing import JAVA_ERRORS, is_missing, java_reason
from sparkinfer.driver.spark.gateway import start_java

__all__ = ["read_head"]

_HADOOP = "spark.hadoop."
"""In front of settings that spark-submit was given for Hadoop."""


def read_head(uri: str, count: int) -> bytes:
    """The first bytes of a file.

    Args:
        uri: of the job file.
        count: bytes at most.

    Raises:
        SpecError: it is not there or cannot be read.
    """
    start_java({})
    jvm: Any = SparkContext._jvm
    settings = jvm.org.apache.hadoop.conf.Configuration()
    for key, value in SparkConf().getAll():
        if key.startswith(_HADOOP):
            settings.set(key.removeprefix(_HADOOP), value)
    try:
        path = jvm.org.apache.hadoop.fs.Path(uri)
        stream = path.getFileSystem(settings).open(path)
        try:
            return bytes(stream.readNBytes(count))
        finally:
            stream.close()
    except JAVA_ERRORS as error:
        reason = "does not exist" if is_missing(error) else f"cannot be read: {java_reason(error)}"
        raise SpecError(f"the job file {uri} {reason}") from error
