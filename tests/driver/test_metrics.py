"""Metrics: what stands on the page for known figures, who may read it, and what happens when nobody listens."""

from __future__ import annotations

import importlib.util
import re
import socket
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from sparkinfer.core.errors import ErrorCode, MissingExtraError, SpecError
from sparkinfer.core.spec import MetricsSpec
from sparkinfer.core.telemetry import STAGES, DeviceFigures, Figures
from sparkinfer.driver.watching.imbalance import Imbalance
from sparkinfer.driver.watching.latency import LatencyHistogram
from sparkinfer.driver.watching.metrics import check_metrics, exposed
from sparkinfer.driver.watching.metrics_page import Page, RunLabels
from sparkinfer.driver.watching.telemetry import Snapshot, TaskCounts
from tests.monitoring.fake_gateway import Gateway
from tests.monitoring.servers import LOOPBACK

RUN = RunLabels(name='my "photos"', run_id="run-1", model="resnet", model_version="3", started=1_700_000_000.0)


def busy() -> Snapshot:
    """100 rows in 50 s, 7 of them failed; 4 s of inference in two calls of 32 and 64 images; a GPU."""
    work = Figures(rows=100, image_bytes=5_000_000, oom_halvings=2, model_loads=1, model_load_seconds=1.5)
    for seconds in (1.0, 3.0):
        work.stages["infer"].observe(seconds)
    for images in (32, 64):
        work.batch_images.observe(images)
    gpu = DeviceFigures("cuda:0", "GPU-abc", memory_used_bytes=30, memory_total_bytes=80, utilisation=0.9)
    return Snapshot(
        run_id="run-1",
        seconds=50.0,
        rows=100,
        errors={"TRUNCATED": 4, "EMPTY": 3},
        total_rows=400,
        tasks=TaskCounts(total=8, done=2, running=3, failed=1),
        figures=work,
        devices=(("node1", gpu), ("node2", DeviceFigures())),
    )


def page_of(snapshot=None, **parts) -> Page:
    latency = parts.get("latency")
    return Page(
        RUN,
        figures=lambda: snapshot or busy(),
        imbalance=lambda: parts.get("imbalance"),
        latency=(lambda: latency) if latency else None,
    )


def text_of(page: Page) -> str:
    registry = CollectorRegistry()
    registry.register(page)
    return generate_latest(registry).decode()


def samples_of(text: str) -> dict[tuple[str, tuple[str, ...]], float]:
    """(metric, values of its labels but the job's name, in the order of their names) -> value."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = dict(sample.labels)
            if family.name != "sparkinfer_run_info":
                assert labels.pop("name") == RUN.name
            found[sample.name, tuple(value for _, value in sorted(labels.items()))] = sample.value
    return found


def test_rows_and_errors_are_those_of_the_snapshot():
    found = samples_of(text_of(page_of()))
    assert found["sparkinfer_rows_total", ()] == 100
    assert found["sparkinfer_expected_rows", ()] == 400
    assert found["sparkinfer_mean_images_per_second", ()] == 2
    errors = {labels[0]: value for (name, labels), value in found.items() if name == "sparkinfer_row_errors_total"}
    assert errors == {**dict.fromkeys(map(str, ErrorCode), 0), "TRUNCATED": 4, "EMPTY": 3}


@pytest.mark.parametrize("broken_off", [False, True])
def test_a_run_that_is_broken_off_says_so(broken_off):
    found = samples_of(text_of(page_of(replace(busy(), broken_off=broken_off))))
    assert found["sparkinfer_run_broken_off", ()] == broken_off


def test_work_is_that_of_the_tasks():
    found = samples_of(text_of(page_of()))
    assert found["sparkinfer_image_bytes_total", ()] == 5_000_000
    assert found["sparkinfer_batch_halvings_total", ()] == 2
    assert found["sparkinfer_model_loads_total", ()] == 1
    assert found["sparkinfer_model_load_seconds_total", ()] == 1.5
    tasks = {labels[0]: value for (name, labels), value in found.items() if name == "sparkinfer_tasks"}
    assert tasks == {"running": 3, "done": 2, "failed": 1, "total": 8}


def test_histograms_are_cumulative_and_have_every_stage():
    found = samples_of(text_of(page_of()))
    assert {labels[0] for name, labels in found if name == "sparkinfer_stage_seconds_count"} == set(STAGES)
    assert found["sparkinfer_stage_seconds_sum", ("infer",)] == 4
    assert found["sparkinfer_stage_seconds_count", ("infer",)] == 2
    # 1.0 lies in the bucket that ends there, 3.0 in the one up to 3.3.
    buckets = {"0.68": 0, "1.0": 1, "2.2": 1, "3.3": 2, "+Inf": 2}
    assert {le: found["sparkinfer_stage_seconds_bucket", (le, "infer")] for le in buckets} == buckets
    assert found["sparkinfer_batch_images_sum", ()] == 96
    assert found["sparkinfer_batch_images_bucket", ("32.0",)] == 1


def test_devices_are_there_where_they_can_be_told():
    found = samples_of(text_of(page_of()))
    gpu = {name: value for (name, labels), value in found.items() if labels == ("GPU-abc", "node1")}
    assert gpu == {
        "sparkinfer_gpu_memory_used_bytes": 30,
        "sparkinfer_gpu_memory_bytes": 80,
        "sparkinfer_gpu_utilization_ratio": 0.9,
    }
    assert not [name for name, labels in found if "node2" in labels]
    assert "gpu" not in text_of(page_of(Snapshot("run-1")))


def test_imbalance_and_latency_where_there_are_any():
    latency = LatencyHistogram()
    latency.observe(4.0)
    found = samples_of(text_of(page_of(imbalance=Imbalance(partitions=0.5, hosts=0.25), latency=latency)))
    assert found["sparkinfer_imbalance_ratio", ("partitions",)] == 0.5
    assert found["sparkinfer_imbalance_ratio", ("hosts",)] == 0.25
    assert found["sparkinfer_row_latency_seconds_sum", ()] == 4
    assert found["sparkinfer_row_latency_seconds_bucket", ("5.0",)] == 1
    assert found["sparkinfer_row_latency_seconds_bucket", ("3.0",)] == 0
    bare = text_of(page_of())
    assert "imbalance" not in bare
    assert "latency" not in bare


def test_a_run_that_has_not_begun_has_a_page_too():
    found = samples_of(text_of(page_of(Snapshot("run-1"))))
    assert found["sparkinfer_rows_total", ()] == 0
    assert found["sparkinfer_mean_images_per_second", ()] == 0
    assert ("sparkinfer_expected_rows", ()) not in found


def exposing(spec: MetricsSpec, told: list[str]):
    return exposed(spec, page_of(), RUN.name, LOOPBACK, told.append)


def test_the_page_is_served_while_the_job_runs_on_one_address():
    told: list[str] = []
    with exposing(MetricsSpec(port=0), told):
        (url,) = told
        with urllib.request.urlopen(url, timeout=10) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            assert samples_of(answer.read().decode())["sparkinfer_rows_total", ()] == 100
        # A socket on all addresses would answer on this one too.
        with pytest.raises(urllib.error.URLError):
            urllib.request.urlopen(url.replace("127.0.0.1", "127.0.0.2"), timeout=10)
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(url, timeout=10)


def test_a_given_address_wins():
    told: list[str] = []
    with exposing(MetricsSpec(port=0, address="127.0.0.2"), told):
        assert told[0].startswith("http://127.0.0.2:")


def test_a_port_in_use_is_told_with_a_hint():
    with socket.create_server((LOOPBACK, 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(SpecError) as caught, exposing(MetricsSpec(port=port), []):
            pytest.fail("it was served")
    assert caught.value.key == "metrics.port"
    assert str(port) in caught.value.message
    assert "0 takes a free one" in caught.value.hint


@pytest.mark.parametrize("fails", [False, True])
def test_the_last_figures_are_pushed_when_the_job_ends_however_it_ends(fails):
    told: list[str] = []
    with Gateway() as gateway:
        try:
            with exposing(MetricsSpec(push=gateway.url), told):
                assert gateway.pushed == []
                if fails:
                    raise KeyError("the job")
        except KeyError:
            assert fails
        ((verb, path, body),) = gateway.pushed
    assert verb == "PUT"  # replaces what the last run of this name has left
    assert path == "/metrics/job/sparkinfer-pushed/name@base64/bXkgInBob3RvcyI="  # printf 'my "photos"' | base64
    assert samples_of(body)["sparkinfer_rows_total", ()] == 100
    assert told == []


@pytest.mark.parametrize("kind", ["nobody listens", "an error"])
def test_a_gateway_that_fails_is_a_warning(kind, caplog):
    told: list[str] = []
    with Gateway(status=500) as gateway, socket.create_server((LOOPBACK, 0)) as closed:
        url = gateway.url if kind == "an error" else f"http://{LOOPBACK}:{closed.getsockname()[1]}"
        if kind == "nobody listens":
            closed.close()
        with exposing(MetricsSpec(push=url), told):
            pass
    assert told == []
    assert caplog.text.count(f"could not be pushed to {url}") == 1


def test_without_metrics_nothing_is_looked_for(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: pytest.fail(f"looked for {name}"))
    check_metrics(None)


def test_a_missing_extra_names_the_line_that_installs_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(MissingExtraError) as caught:
        check_metrics(MetricsSpec(port=0))
    assert caught.value.hint == 'pip install "sparkinfer[metrics]"'


def test_every_metric_is_documented_with_its_type():
    text = (Path(__file__).parents[2] / "deploy/monitoring/README.md").read_text("utf-8")
    rows = re.findall(r"^\| (`sparkinfer_.*?) \| (\w+) \|", text, re.MULTILINE)
    documented = {name: kind for names, kind in rows for name in re.findall(r"`(\w+)", names)}
    page = text_of(page_of(imbalance=Imbalance(0.0, 0.0), latency=LatencyHistogram()))
    assert documented == dict(re.findall(r"^# TYPE (\w+) (\w+)$", page, re.MULTILINE))
