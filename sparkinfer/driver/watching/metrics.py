"""Figures for Prometheus: a page that is served while a job runs, and pushed when it ends. Driver only.

The page is `driver.metrics_page`; this module brings it out. Serving is a thread of prometheus_client's own HTTP server
on one address. Pushing replaces the figures of the last run of the same name in a Pushgateway; a gateway that does not
answer is a warning in the log and costs at most `PUSH_SECONDS`, never the job.
"""

from __future__ import annotations

import importlib.util
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from sparkinfer.core.errors import MissingExtraError, SpecError
from sparkinfer.core.model_spec import ModelSpec
from sparkinfer.core.spec import JobSpec, MetricsSpec
from sparkinfer.driver.watching.imbalance import imbalance
from sparkinfer.driver.watching.latency import Latency
from sparkinfer.driver.watching.receiver import driver_host
from sparkinfer.driver.watching.telemetry import Telemetry

if TYPE_CHECKING:  # the extra may be missing
    from prometheus_client import CollectorRegistry

    from sparkinfer.driver.watching.metrics_page import Page

__all__ = ["PUSHED_JOB", "PUSH_SECONDS", "check_metrics", "exposed", "run_metrics"]

log = logging.getLogger(__name__)

PUSH_SECONDS = 10.0
"""Longest wait for a gateway; one that lives answers within milliseconds."""

PUSHED_JOB = "sparkinfer-pushed"
"""Label `job` of what is pushed: the last figures of a run that is over must not add to those of one that runs."""


def check_metrics(spec: MetricsSpec | None) -> None:
    """Makes sure that metrics can be given, before anything is started.

    Raises:
        MissingExtraError: they are asked for, and prometheus-client is not installed.
    """
    if spec is not None and importlib.util.find_spec("prometheus_client") is None:
        raise MissingExtraError("prometheus-client", extra="metrics")


@contextmanager
def run_metrics(
    spark: SparkSession,
    spec: JobSpec,
    model: ModelSpec,
    telemetry: Telemetry,
    latency: Latency,
    tell: Callable[[str], None],
) -> Iterator[None]:
    """Serves and pushes the figures of the run inside, as the job file asks for it.

    Args:
        spark: the session.
        spec: the job.
        model: its model, with its name.
        telemetry: what is known of the run.
        latency: of its rows; on the page where the job keeps running.
        tell: told where the page is.

    Raises:
        SpecError: the address or the port cannot be had.
    """
    if spec.metrics is None:
        yield
        return
    from sparkinfer.driver.watching.metrics_page import Page, RunLabels

    labels = RunLabels(spec.name, telemetry.snapshot().run_id, model.display_name, model.version or "", time.time())
    keeps_running = spec.resume is not None and spec.resume.trigger is not None
    page = Page(
        labels,
        figures=telemetry.snapshot,
        imbalance=lambda: imbalance(telemetry.records()),
        latency=latency.figures if keeps_running else None,
    )
    host = driver_host(dict(spark.sparkContext.getConf().getAll()))
    with exposed(spec.metrics, page, spec.name, host, tell):
        try:
            yield
        finally:
            telemetry.break_off()  # so that no row is pushed that is in no table


@contextmanager
def exposed(spec: MetricsSpec, page: Page, name: str, host: str, tell: Callable[[str], None]) -> Iterator[None]:
    """Serves a page while a job runs inside, and pushes it at the end, also of a job that failed.

    Args:
        spec: where to.
        page: what.
        name: the job's.
        host: the driver's, where the spec names no address.
        tell: as for `run_metrics`.

    Raises:
        SpecError: the address or the port cannot be had.
    """
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    registry.register(page)
    with _served(spec, registry, spec.address or host, tell):
        try:
            yield
        finally:
            if spec.push is not None:
                _push(spec.push, registry, name)


@contextmanager
def _served(spec: MetricsSpec, registry: CollectorRegistry, host: str, tell: Callable[[str], None]) -> Iterator[None]:
    if spec.port is None:
        yield
        return
    from prometheus_client import start_http_server

    try:
        server, thread = start_http_server(spec.port, host, registry)
    except OSError as error:
        raise SpecError(
            f"cannot listen on {host} port {spec.port}: {error.strerror or error}",
            key="metrics.port",
            hint="another job may have it: port 0 takes a free one and tells which",
        ) from error
    try:
        tell(f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics")
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _push(gateway: str, registry: CollectorRegistry, name: str) -> None:
    from prometheus_client import push_to_gateway

    try:
        push_to_gateway(gateway, PUSHED_JOB, registry, grouping_key={"name": name}, timeout=PUSH_SECONDS)
    except Exception as error:  # noqa: BLE001 - whatever a gateway or a proxy does, the job is done
        # To the log alone, which a quiet console has too.
        log.warning("metrics could not be pushed to %s: %s", gateway, getattr(error, "reason", None) or error)
