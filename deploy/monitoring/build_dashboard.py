"""Writes dashboard.json, the Grafana dashboard of sparkinfer, beside this file. Needs Python only.

    python deploy/monitoring/build_dashboard.py            # write it
    python deploy/monitoring/build_dashboard.py --check    # exit status 1 when it is out of date

A panel is a line of `ROWS`; the tests check the result against Grafana's schema, and every query against a Prometheus
server that has watched a job. Import the JSON in Grafana: Dashboards > New > Import.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["dashboard"]

_JOB = 'job="$job", name=~"$name"'
"""Chooses the figures of the job itself."""
_SPARK = 'application_name=~"$name"'
"""Chooses Spark's own: its application has the job's name."""
_PER = "$__rate_interval"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        title, meaning, unit: what a person reads; `unit` as Grafana calls it.
        queries: legend to PromQL.
        kind: of Grafana's panels.
        width: of 24 columns.
        stacked: whether the lines add up to something.
    """

    title: str
    meaning: str
    unit: str
    queries: dict[str, str] = field(default_factory=dict)
    kind: str = "timeseries"
    width: int = 12
    stacked: bool = False


def _stat(title: str, meaning: str, unit: str, query: str) -> Panel:
    return Panel(title, meaning, unit, {"": query}, "stat", 4)


def _quantiles(metric: str, *by: str) -> dict[str, str]:
    """P50, P95 and P99 of a histogram."""
    labels = ", ".join(("le", *by))
    legend = "".join(f" {{{{{label}}}}}" for label in by)
    return {
        f"P{percent}{legend}": f"histogram_quantile({percent / 100:g}, "
        f"sum by ({labels}) (rate({metric}_bucket{{{_JOB}}}[{_PER}])))"
        for percent in (50, 95, 99)
    }


_ROWS_DONE = f"sum(sparkinfer_rows_total{{{_JOB}}})"
_ROWS_EXPECTED = f"sum(sparkinfer_expected_rows{{{_JOB}}})"
_RATE = f"sum(rate(sparkinfer_rows_total{{{_JOB}}}[{_PER}]))"

ROWS: dict[str, list[Panel]] = {
    "Progress": [
        _stat("Done", "Rows done, of those expected at the end.", "percentunit", f"{_ROWS_DONE} / {_ROWS_EXPECTED}"),
        _stat("Rows", "Good and failed.", "short", _ROWS_DONE),
        _stat("Images/s", "Now.", "short", _RATE),
        _stat("Time left", "At this speed.", "s", f"({_ROWS_EXPECTED} - {_ROWS_DONE}) / {_RATE}"),
        _stat(
            "Failed",
            "Share of the rows done.",
            "percentunit",
            f"sum(sparkinfer_row_errors_total{{{_JOB}}}) / {_ROWS_DONE}",
        ),
        _stat("Tasks running", "Spark's tasks.", "short", f'sum(sparkinfer_tasks{{{_JOB}, state="running"}})'),
        Panel(
            "Images/s",
            "Rows by second, good and failed.",
            "short",
            {"{{name}}": f"sum by (name) (rate(sparkinfer_rows_total{{{_JOB}}}[{_PER}]))"},
        ),
        Panel(
            "Errors by code",
            "Failed rows by second.",
            "short",
            {"{{code}}": f"sum by (code) (rate(sparkinfer_row_errors_total{{{_JOB}}}[{_PER}]))"},
            stacked=True,
        ),
        Panel(
            "Image bytes",
            "Compressed, handed to the decoder.",
            "Bps",
            {"{{name}}": f"sum by (name) (rate(sparkinfer_image_bytes_total{{{_JOB}}}[{_PER}]))"},
        ),
        Panel(
            "Latency of rows",
            "From arrival to commit, of jobs that keep running.",
            "s",
            _quantiles("sparkinfer_row_latency_seconds"),
        ),
    ],
    "Where the time goes": [
        Panel(
            "Seconds by stage",
            "Busy threads by stage; stages overlap.",
            "short",
            {"{{stage}}": f"sum by (stage) (rate(sparkinfer_stage_seconds_sum{{{_JOB}}}[{_PER}]))"},
            stacked=True,
        ),
        Panel(
            "P50, P95, P99 by stage",
            "Of an image (decode, preprocess) or a batch (read, wait, infer, write).",
            "s",
            _quantiles("sparkinfer_stage_seconds", "stage"),
        ),
        Panel(
            "Model busy",
            "Share of the tasks' time in which the model runs.",
            "percentunit",
            {
                "{{name}}": f"sum by (name) (rate(sparkinfer_model_busy_seconds_total{{{_JOB}}}[{_PER}])) "
                f"/ sum by (name) (rate(sparkinfer_task_seconds_total{{{_JOB}}}[{_PER}]))"
            },
        ),
        Panel(
            "Imbalance",
            "How far the heaviest is above the mean: partitions by seconds, hosts by rows.",
            "percentunit",
            {"{{between}}": f"max by (between) (sparkinfer_imbalance_ratio{{{_JOB}}})"},
        ),
    ],
    "Model and device": [
        Panel(
            "Images in a batch",
            "Of each call of the model.",
            "short",
            {
                **_quantiles("sparkinfer_batch_images"),
                "mean": f"sum(rate(sparkinfer_batch_images_sum{{{_JOB}}}[{_PER}])) "
                f"/ sum(rate(sparkinfer_batch_images_count{{{_JOB}}}[{_PER}]))",
            },
        ),
        Panel(
            "Loads and halvings",
            "Models opened, the seconds this took, and batches halved for want of device memory: since the start.",
            "short",
            {
                "loads": f"sum(sparkinfer_model_loads_total{{{_JOB}}})",
                "load seconds": f"sum(sparkinfer_model_load_seconds_total{{{_JOB}}})",
                "halvings": f"sum(sparkinfer_batch_halvings_total{{{_JOB}}})",
            },
        ),
        Panel(
            "GPU utilisation",
            "Share of time in which the GPU did something.",
            "percentunit",
            {"{{host}} {{device}}": f"sparkinfer_gpu_utilization_ratio{{{_JOB}}}"},
        ),
        Panel(
            "GPU memory",
            "In use, of all there is.",
            "percentunit",
            {
                "{{host}} {{device}}": f"sparkinfer_gpu_memory_used_bytes{{{_JOB}}} "
                f"/ sparkinfer_gpu_memory_bytes{{{_JOB}}}"
            },
        ),
    ],
    "Spark's executors": [
        Panel(
            "Cores in tasks",
            "Seconds of tasks by second: how many cores work. Counted when a task ends.",
            "short",
            {
                "executor {{executor_id}}": "sum by (executor_id) "
                f"(rate(metrics_executor_totalDuration_seconds_total{{{_SPARK}}}[{_PER}]))"
            },
        ),
        Panel(
            "Garbage collection",
            "Share of time.",
            "percentunit",
            {
                "executor {{executor_id}}": "sum by (executor_id) "
                f"(rate(metrics_executor_MinorGCTime_seconds_total{{{_SPARK}}}[{_PER}]) "
                f"+ rate(metrics_executor_MajorGCTime_seconds_total{{{_SPARK}}}[{_PER}]))"
            },
        ),
        Panel(
            "Memory",
            "Peaks: the JVM's heap, and the Python workers beside it.",
            "bytes",
            {
                "heap {{executor_id}}": f"sum by (executor_id) (metrics_executor_JVMHeapMemory_bytes{{{_SPARK}}})",
                "Python {{executor_id}}": "sum by (executor_id) "
                f"(metrics_executor_ProcessTreePythonRSSMemory_bytes{{{_SPARK}}})",
            },
        ),
        Panel(
            "CPU of the driver's JVM",
            "Cores; with a local master this JVM is the executor too.",
            "short",
            {"{{instance}}": f"rate(metrics_sparkinfer_driver_JVMCPU_jvmCpuTime_Value[{_PER}]) / 1e9"},
        ),
    ],
}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana's JSON model."""
    return {
        "uid": "sparkinfer",
        "title": "sparkinfer",
        "description": "Image inference jobs on Spark: progress, errors, stages, devices, executors.",
        "tags": ["sparkinfer", "spark"],
        "timezone": "browser",
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "15s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": list(_variables())},
        "annotations": {"list": []},
        "panels": list(_panels()),
    }


def _variables() -> Iterator[dict[str, Any]]:
    yield {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
    }
    yield {
        "name": "job",
        "label": "Figures of",
        "description": "Jobs that run, or the last runs that were pushed.",
        "type": "custom",
        "query": "running : sparkinfer, pushed : sparkinfer-pushed",
        "current": {"text": "running", "value": "sparkinfer"},
        "options": [
            {"text": "running", "value": "sparkinfer", "selected": True},
            {"text": "pushed", "value": "sparkinfer-pushed", "selected": False},
        ],
    }
    yield {
        "name": "name",
        "label": "Job",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": 'label_values(sparkinfer_run_info{job="$job"}, name)', "refId": "name"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": {"text": "All", "value": "$__all"},
    }


def _panels() -> Iterator[dict[str, Any]]:
    number, top = 1, 0
    for title, panels in ROWS.items():
        place = {"x": 0, "y": top, "w": 24, "h": 1}
        yield {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        number, top, left = number + 1, top + 1, 0
        for panel in panels:
            height = 4 if panel.kind == "stat" else 8
            yield _panel(panel, number, {"x": left, "y": top, "w": panel.width, "h": height})
            number, left = number + 1, left + panel.width
            if left >= 24:
                top, left = top + height, 0


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.meaning,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": _custom(panel)}, "overrides": []},
        "options": _options(panel),
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "editorMode": "code",
                "expr": query,
                "legendFormat": legend or "__auto",
                "range": panel.kind != "stat",
                "instant": panel.kind == "stat",
            }
            for index, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def _custom(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        return {}
    stacking = {"group": "A", "mode": "normal" if panel.stacked else "none"}
    return {"drawStyle": "line", "fillOpacity": 20 if panel.stacked else 5, "showPoints": "never", "stacking": stacking}


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        last = {"calcs": ["lastNotNull"], "fields": "", "values": False}
        return {"colorMode": "none", "graphMode": "none", "reduceOptions": last}
    return {
        "legend": {"showLegend": True, "displayMode": "list", "placement": "bottom", "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def main(arguments: list[str]) -> int:
    """Writes or checks the file; returns the exit status."""
    file = Path(__file__).with_name("dashboard.json")
    text = json.dumps(dashboard(), indent=2) + "\n"
    if "--check" not in arguments:
        file.write_text(text, "utf-8")
    elif not file.exists() or file.read_text("utf-8") != text:
        print(f"{file} is out of date: python {__file__}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
