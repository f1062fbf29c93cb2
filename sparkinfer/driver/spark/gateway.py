"""A SparkContext whose secret settings are on no command line. Driver side.

pyspark starts Java as `spark-submit --conf key=value ...`, where `ps` shows every setting to every user of the
machine for as long as the job runs. So Java is started with the settings that are no secrets, and gets the others
over pyspark's own connection to it, which has a token.

Between the two, settings can still change: `effective` says what they are, from spark-defaults.conf and spark-submit
too, and `without` takes some back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

from sparkinfer.core.secrets import is_secret_name, redacted

__all__ = ["effective", "has_context", "start_context", "start_java", "without"]


def start_context(settings: Mapping[str, str]) -> None:
    """Starts Java and the context of this process, which the next `SparkSession.builder.getOrCreate` finds.

    Args:
        settings: Spark's, `spark.master` and `spark.app.name` too. A secret one comes too late for what spark-submit
            itself does with it, which is to fetch `spark.jars` and `spark.jars.packages`.
    """
    start_java(settings)
    # With what spark-defaults.conf and PYSPARK_SUBMIT_ARGS say, which Java has as system properties by now.
    conf = SparkConf(loadDefaults=True).setAll(list(settings.items()))
    SparkContext(conf=conf, gateway=SparkContext._gateway)


def start_java(settings: Mapping[str, str]) -> None:
    """Starts Java, or finds the one that spark-submit or an earlier context has started.

    Args:
        settings: as for `start_context`.
    """
    if SparkContext._gateway is None:
        shown = {key: value for key, value in settings.items() if not is_secret_name(key) and redacted(value) == value}
        gateway = launch_gateway(  # type: ignore[no-untyped-call]
            SparkConf(loadDefaults=False).setAll(list(shown.items()))
        )
        SparkContext._ensure_initialized(gateway=gateway)  # noqa: SLF001 - without a context


def has_context() -> bool:
    """Whether this process has a context already, whose settings are what they are."""
    return SparkContext._active_spark_context is not None  # noqa: SLF001 - the public way makes one


def effective(settings: Mapping[str, str], keys: Iterable[str]) -> dict[str, str]:
    """What a context would be started with, once Java runs.

    Args:
        settings: that win over Java's.
        keys: to look up; those that are not set are left out.
    """
    system = _system()
    found = {key: settings.get(key) or system.getProperty(key) for key in keys}
    return {key: value for key, value in found.items() if value}


@contextmanager
def without(keys: Iterable[str]) -> Iterator[None]:
    """Hides settings of spark-defaults.conf and spark-submit from the context that is made meanwhile."""
    hidden = {key: _system().clearProperty(key) for key in keys}
    try:
        yield
    finally:
        for key, value in hidden.items():
            if value is not None:
                _system().setProperty(key, value)


def _system() -> Any:
    jvm: Any = SparkContext._jvm
    return jvm.java.lang.System
