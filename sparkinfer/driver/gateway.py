"""A SparkContext whose secret settings are on no command line. Driver side.

pyspark starts Java as `spark-submit --conf key=value ...`, where `ps` shows every setting to every user of the
machine for as long as the job runs. So Java is started with the settings that are no secrets, and gets the others
over pyspark's own connection to it, which has a token.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

from sparkinfer.core.secrets import is_secret_name, redacted

__all__ = ["start_context"]


def start_context(settings: Mapping[str, str]) -> None:
    """Starts Java and the context of this process, which the next `SparkSession.builder.getOrCreate` finds.

    Args:
        settings: Spark's, `spark.master` and `spark.app.name` too. A secret one comes too late for what spark-submit
            itself does with it, which is to fetch `spark.jars` and `spark.jars.packages`.
    """
    shown = {key: value for key, value in settings.items() if not is_secret_name(key) and redacted(value) == value}
    # A process has one Java: a context that was stopped has left it.
    gateway = SparkContext._gateway or launch_gateway(  # type: ignore[no-untyped-call]
        SparkConf(loadDefaults=False).setAll(list(shown.items()))
    )
    SparkContext(conf=SparkConf(loadDefaults=False).setAll(list(settings.items())), gateway=gateway)
