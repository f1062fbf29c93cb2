"""Has YARN say why a job in cluster mode failed. Driver side.

What Python writes there goes into the file `stdout` of the driver's container. YARN's own message, which spark-submit
prints and the resource manager's page shows, quotes the end of `stderr`, where only Java writes.
"""

from __future__ import annotations

import os

__all__ = ["quote_in_diagnostics"]


def quote_in_diagnostics(text: str) -> None:
    """Writes a message where YARN quotes it from; does nothing when this process is no driver in a container of YARN.

    Args:
        text: without secrets.
    """
    if not {"CONTAINER_ID", "PYSPARK_GATEWAY_PORT"} <= os.environ.keys():
        return
    from pyspark import SparkContext

    from sparkinfer.driver.spark.gateway import start_java

    start_java({})
    assert SparkContext._jvm is not None
    SparkContext._jvm.java.lang.System.err.println(text)
