"""The figures of a run as Prometheus metrics. Driver only; needs the extra `metrics`; safe to ask from any thread.

Every name begins with `sparkinfer_`, ends with its unit, and carries the job's `name` as a label; what else tells a run
from others (its id, its model) stands once, in `sparkinfer_run_info`. Counters of rows and errors are those of
`Snapshot`: what tasks tell while a pass runs, and the exact counts of the table once it is written. Everything is made
anew at each scrape, so nothing here has a state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import inf

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

from sparkinfer.core.errors import ErrorCode
from sparkinfer.core.telemetry import DeviceFigures, Histogram
from sparkinfer.driver.watching.imbalance import Imbalance
from sparkinfer.driver.watching.telemetry import Snapshot

__all__ = ["Page", "RunLabels"]


@dataclass(frozen=True)
class RunLabels:
    """What tells a run from others.

    Attributes:
        name: of the job, as in its file.
        run_id: of the run.
        model: its name.
        model_version: as the job file says; empty where it says nothing.
        started: Unix time, seconds.
    """

    name: str
    run_id: str
    model: str
    model_version: str
    started: float


class Page:
    """Gives all metrics of a run at each scrape: a `prometheus_client.registry.Collector`.

    Args:
        run: whose.
        figures: gives the present figures.
        imbalance: gives how unevenly the present pass is spread.
        latency: gives the seconds from each row's arrival to its commit, for jobs that keep running; None for others.
    """

    def __init__(
        self,
        run: RunLabels,
        figures: Callable[[], Snapshot],
        imbalance: Callable[[], Imbalance | None],
        latency: Callable[[], Histogram] | None = None,
    ) -> None:
        self._run = run
        self._figures = figures
        self._imbalance = imbalance
        self._latency = latency

    def collect(self) -> Iterator[Metric]:
        """All metric families."""
        seen = self._figures()
        yield from self._about_the_run(seen)
        yield from self._about_rows(seen)
        yield from self._about_work(seen)
        yield from self._about_devices(seen.devices)
        uneven = self._imbalance()
        if uneven is not None:
            yield self._metric(
                GaugeMetricFamily,
                "imbalance_ratio",
                "How far the heaviest is above the mean: of partitions by seconds, of hosts by rows.",
                "between",
                [("partitions", uneven.partitions), ("hosts", uneven.hosts)],
            )
        if self._latency is not None:
            yield self._histogram(
                "row_latency_seconds",
                "From a row's arrival (its file's modification time) to its commit, of jobs that keep running.",
                [((), self._latency())],
            )

    def _about_the_run(self, seen: Snapshot) -> Iterator[Metric]:
        run = self._run
        yield InfoMetricFamily(
            "sparkinfer_run",
            "What runs.",
            {"name": run.name, "run_id": run.run_id, "model": run.model, "model_version": run.model_version},
        )
        yield self._metric(
            GaugeMetricFamily, "run_start_timestamp_seconds", "Unix time at which the run started.", value=run.started
        )
        yield self._metric(
            GaugeMetricFamily, "run_duration_seconds", "Since the first pass over the input began.", value=seen.seconds
        )
        yield self._metric(
            GaugeMetricFamily,
            "run_broken_off",
            "1 when the run ended before the pass it was at was written.",
            value=seen.broken_off,
        )
        tasks = seen.tasks
        yield self._metric(
            GaugeMetricFamily,
            "tasks",
            "Spark's tasks of the present pass.",
            "state",
            [("running", tasks.running), ("done", tasks.done), ("failed", tasks.failed), ("total", tasks.total)],
        )

    def _about_rows(self, seen: Snapshot) -> Iterator[Metric]:
        yield self._metric(
            CounterMetricFamily,
            "rows",
            "Rows that this run predicted, good and failed; of a retry those run again; at its end those in the table.",
            value=seen.rows,
        )
        yield self._metric(
            CounterMetricFamily,
            "row_errors",
            "Failed rows by error code.",
            "code",
            [(str(code), seen.errors.get(code, 0)) for code in ErrorCode],
        )
        if seen.total_rows is not None:
            yield self._metric(
                GaugeMetricFamily, "expected_rows", "Rows that the run will have at its end.", value=seen.total_rows
            )
        rate = seen.rows / seen.seconds if seen.seconds else 0.0
        yield self._metric(
            GaugeMetricFamily, "mean_images_per_second", "Rows by the seconds since the run began.", value=rate
        )

    def _about_work(self, seen: Snapshot) -> Iterator[Metric]:
        work = seen.figures
        yield self._metric(
            CounterMetricFamily, "image_bytes", "Compressed image bytes handed to the decoder.", value=work.image_bytes
        )
        yield self._histogram(
            "stage_seconds",
            "Time by stage: decode and preprocess of an image; read, wait, infer and write of a batch.",
            [((stage,), seconds) for stage, seconds in work.stages.items()],
            ["stage"],
        )
        yield self._histogram("batch_images", "Images in one call of the model.", [((), work.batch_images)])
        yield self._metric(
            CounterMetricFamily,
            "batch_halvings",
            "Times that too little device memory halved the batch.",
            value=work.oom_halvings,
        )
        yield self._metric(CounterMetricFamily, "model_loads", "Models opened.", value=work.model_loads)
        yield self._metric(
            CounterMetricFamily, "model_load_seconds", "Time spent opening models.", value=work.model_load_seconds
        )
        yield self._metric(
            CounterMetricFamily,
            "model_busy_seconds",
            "Time of tasks in which the model ran, of all tasks.",
            value=work.busy_seconds,
        )
        yield self._metric(CounterMetricFamily, "task_seconds", "Time of tasks, of all tasks.", value=seen.task_seconds)
        yield self._metric(
            CounterMetricFamily, "messages", "Messages that tasks have sent while they ran.", value=seen.messages
        )

    def _about_devices(self, devices: Iterable[tuple[str, DeviceFigures]]) -> Iterator[Metric]:
        used = GaugeMetricFamily(
            "sparkinfer_gpu_memory_used_bytes", "Of the device, by all processes.", labels=_DEVICE_LABELS
        )
        size = GaugeMetricFamily("sparkinfer_gpu_memory_bytes", "Of the device, in all.", labels=_DEVICE_LABELS)
        busy = GaugeMetricFamily(
            "sparkinfer_gpu_utilization_ratio", "Share of time in which the GPU did something.", labels=_DEVICE_LABELS
        )
        for host, device in devices:
            labels = [self._run.name, host, device.identity]
            for family, value in (
                (used, device.memory_used_bytes),
                (size, device.memory_total_bytes),
                (busy, device.utilisation),
            ):
                if value is not None:
                    family.add_metric(labels, value)
        yield from (family for family in (used, size, busy) if family.samples)

    def _metric(
        self,
        kind: type[CounterMetricFamily | GaugeMetricFamily],
        name: str,
        meaning: str,
        label: str | None = None,
        values: Iterable[tuple[str, float]] = (),
        *,
        value: float = 0,
    ) -> Metric:
        """A counter or a gauge, one for each value of a label where there is one."""
        family = kind(f"sparkinfer_{name}", meaning, labels=["name", label] if label else ["name"])
        for labels, amount in self._labelled(label, values, value):
            family.add_metric(labels, amount)
        return family

    def _labelled(
        self, label: str | None, values: Iterable[tuple[str, float]], value: float
    ) -> Iterator[tuple[list[str], float]]:
        if label is None:
            yield [self._run.name], value
        else:
            yield from (([self._run.name, of], amount) for of, amount in values)

    def _histogram(
        self,
        name: str,
        meaning: str,
        parts: Iterable[tuple[tuple[str, ...], Histogram]],
        labels: Iterable[str] = (),
    ) -> Metric:
        family = HistogramMetricFamily(f"sparkinfer_{name}", meaning, labels=["name", *labels])
        for values, histogram in parts:
            buckets = [
                ("+Inf" if bound == inf else str(bound), float(count)) for bound, count in histogram.cumulative()
            ]
            family.add_metric([self._run.name, *values], buckets, histogram.total)
        return family


_DEVICE_LABELS = ("name", "host", "device")
