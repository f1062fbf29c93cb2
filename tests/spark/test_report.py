"""The report of real jobs: figures of the table, pictures of the input, and what becomes of a run that fails."""

from __future__ import annotations

import base64
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from pyspark.sql import SparkSession
from rich.console import Console

from sparkinfer.core.errors import BudgetExceededError
from sparkinfer.core.spec import JobSpec
from sparkinfer.driver.job import run_job
from sparkinfer.driver.reporting.images import thumbnails
from sparkinfer.driver.reporting.table import LabelCount, figures_of, rows_of_run
from tests.executor.chain import png_of
from tests.spark.test_job import job

pytestmark = pytest.mark.spark

COLOURS = {"red": (200, 10, 20), "green": (20, 210, 10), "blue": (10, 20, 220)}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Four red pictures, two green ones and one blue; an empty file and a text file."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, colour in enumerate(["red"] * 4 + ["green"] * 2 + ["blue"]):
        (folder / f"{number} <b>{colour}.png").write_bytes(png_of(*COLOURS[colour]))
    (folder / "empty.png").write_bytes(b"")
    (folder / "notes.txt").write_text("no image")
    return folder


class Pictures(HTMLParser):
    """alt -> picture of every image of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, Image.Image]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "img":
            data = base64.b64decode(str(values["src"]).removeprefix("data:image/jpeg;base64,"))
            self.found.append((str(values["alt"]), Image.open(io.BytesIO(data))))


def report_of(folder: Path) -> tuple[dict[str, Any], str]:
    return json.loads((folder / "report.json").read_text()), (folder / "report.html").read_text()


def test_a_job_explains_itself(spark: SparkSession, tmp_path: Path, photos: Path) -> None:
    report = tmp_path / "report"
    result = run_job(job(tmp_path, {"images": str(photos)}, report=str(report), name="<i>colours"))
    found, page = report_of(report)
    assert (found["state"], found["rows"], found["run_id"]) == ("done", 9, result.run_id)
    assert found["errors"] == {"EMPTY": 1, "UNSUPPORTED_FORMAT": 1}
    assert [(label["label"], label["rows"]) for label in found["table"]["labels"]] == [
        ("red", 4),
        ("green", 2),
        ("blue", 1),
    ]
    assert {row["code"] for row in found["table"]["failed"]} == {"EMPTY", "UNSUPPORTED_FORMAT"}
    assert sum(record["rows"] for record in found["partition_table"]) == 9
    assert found["stages"]["decode"]["count"] == 9 - 1  # of an empty file there is nothing to decode
    assert found["versions"]["spark"] == spark.version
    (device,) = found["devices"]  # two tasks, one machine
    assert (device["kind"], device["name"], device["peak_memory_used_bytes"]) == ("cpu", "cpu", None)
    assert 0 <= device["busy_share"] <= 1
    assert {"listing", "predict and write"} <= {phase["name"] for phase in found["phases"]}
    # Each picture is shown twice: by chance, and among the least confident.
    drawn = Pictures(page).found
    assert len(drawn) == 2 * 7
    for alt, picture in drawn:
        mean = picture.convert("RGB").resize((1, 1)).getpixel((0, 0))
        assert max(abs(a - b) for a, b in zip(mean, COLOURS[alt.split()[0]], strict=True)) < 12
    assert "<i>" not in page
    assert re.search(r"&lt;b&gt;red\.png", page)


def test_rows_of_a_table_are_drawn_from_their_own_bytes(spark: SparkSession, tmp_path: Path) -> None:
    rows = [(number, png_of(*COLOURS["green"])) for number in range(3)]
    spark.createDataFrame(rows, "id bigint, picture binary").write.parquet(str(tmp_path / "in"))
    source = {"parquet": str(tmp_path / "in"), "path_column": "id", "content_column": "picture"}
    run_job(job(tmp_path, source, report=str(tmp_path / "report")))
    _, page = report_of(tmp_path / "report")
    assert [alt.split()[0] for alt, _ in Pictures(page).found] == ["green"] * 6


def test_a_query_is_not_run_again(spark: SparkSession, tmp_path: Path) -> None:
    spec = job(tmp_path, {"query": "SELECT 1"})
    assert thumbnails(spark, spec.source, spec.preprocess, ["a"]).note is not None


def test_a_run_over_its_budget_leaves_a_report_that_says_so(spark: SparkSession, tmp_path: Path, photos: Path) -> None:
    report = tmp_path / "report"
    with pytest.raises(BudgetExceededError):
        run_job(job(tmp_path, {"images": str(photos)}, report=str(report), errors={"max_fraction": 0.1}))
    found, page = report_of(report)
    assert (found["state"], found["error"]["exit_status"], found["rows"]) == ("failed", 3, 9)
    assert "2 of 9 rows failed" in found["error"]["message"]
    assert "The run failed: BudgetExceededError" in page
    assert len(Pictures(page).found) == 2 * 7  # the table is there


def test_a_retry_is_told_as_one(spark: SparkSession, tmp_path: Path, photos: Path) -> None:
    """Of two failed rows one is mended; the page is of these two, and says so."""
    report = tmp_path / "report"
    spec = job(tmp_path, {"images": str(photos)}, report=str(report))
    run_job(spec)
    assert report_of(report)[0]["retry"] is None
    (photos / "empty.png").write_bytes(png_of(*COLOURS["blue"]))
    said = io.StringIO()
    result = run_job(spec, Console(file=said, width=300), retry_codes=())
    assert (result.rows, result.retried, result.errors) == (9, 2, {"UNSUPPORTED_FORMAT": 1})
    assert "1 of 2 failed rows mended, 1 fail again; the table has 9 rows, 1 error" in said.getvalue()
    found, page = report_of(report)
    assert found["retry"] == {
        "failed": 2,
        "mended": 1,
        "stay": 0,
        "table_rows": 9,
        "table_errors": {"UNSUPPORTED_FORMAT": 1},
    }
    assert (found["rows"], found["errors"], found["progress"]["rows"]) == (2, {"UNSUPPORTED_FORMAT": 1}, 2)
    assert (found["table"]["rows"], found["table"]["errors"]) == (2, {"UNSUPPORTED_FORMAT": 1})
    assert "2 failed rows of an earlier run were run again; 1 of them are mended, 1 rows fail now." in page
    assert "All figures here are of the 2 rows of this run. The whole table has 9 rows, 1 of them failed." in page


def test_a_run_that_fails_leaves_one_too(
    spark: SparkSession, tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = tmp_path / "report"
    run_job(job(tmp_path, {"images": str(photos)}, report=str(report)))
    done, _ = report_of(report)
    monkeypatch.setattr("sparkinfer.driver.model._digest", lambda path: "0" * 64)  # not the model that arrives
    with pytest.raises(Exception, match="0000"):
        run_job(job(tmp_path, {"images": str(photos)}, report=str(report), sink={"path": str(tmp_path / "other")}))
    found, page = report_of(report)
    assert (found["state"], found["error"]["exit_status"]) == ("failed", 2)
    assert found.keys() == done.keys()
    for part in ("model", "progress", "work", "stages", "table", "environment"):
        assert found[part].keys() == done[part].keys(), part
    assert (found["model_digest"], found["partitions"]) == ("0" * 64, done["partitions"])
    assert found["seconds"] > 0
    assert "0000" in found["error"]["message"]
    assert "before its table was written" in found["table"]["note"]
    assert "✕ failed" in page


@pytest.mark.parametrize("rows_known", [154, None, 50_001], ids=["on the driver", "unknown", "by tasks"])
def test_figures_are_of_this_runs_rows_only(spark: SparkSession, tmp_path: Path, rows_known: int | None) -> None:
    # 0.00, 0.01, ... 0.99 and 1: the last bin has two; two raw scores are no confidence.
    values = [*(i / 100 + 0.001 for i in range(100)), 1.0, 3.5, -2.0]
    old = [(f"old{i}", 1, "old", 0.5, None, "other") for i in range(5)]
    good = [(f"p{i:03d}", i % 40, f"class {i % 40}", value, None, "run") for i, value in enumerate(values)]
    bad = [(f"bad{i}", None, None, None, "TIMEOUT", "run") for i in range(50)] + [(None, *[None] * 3, "EMPTY", "run")]
    ddl = "path string, predicted_class_idx int, label string, confidence float, error_code string, run_id string"
    rows = spark.createDataFrame(old + good + bad, ddl).selectExpr("*", "'infer' error_stage", "'why' error_message")
    rows.write.parquet(str(tmp_path / "out"))
    spec = JobSpec.model_validate(
        {"source": {"images": "x"}, "model": {"path": "m"}, "sink": {"path": str(tmp_path / "out")}}
    )
    found = figures_of(rows_of_run(spark, spec, "run"), rows_known)
    assert found.rows == 103 + 51
    assert found.errors == {"TIMEOUT": 50, "EMPTY": 1}
    assert found.confidence == (*[1] * 99, 2)
    assert found.outside == 2
    # 103 rows of 40 classes: classes 0 to 22 have three, the others two.
    assert found.labels[0] == LabelCount(0, "class 0", 3)
    assert (len(found.labels), found.more_labels) == (30, True)
    assert [row.path for row in found.least[:3]] == ["p102", "p000", "p001"]
    assert len({row.path for row in found.sample}) == 24
    assert not [row for row in found.sample if str(row.path).startswith(("old", "bad"))]
    timeouts = [row for row in found.failed if row.code == "TIMEOUT"]
    assert 1 < len(timeouts) <= 6
    assert (timeouts[0].stage, timeouts[0].message) == ("infer", "why")
    assert [row.path for row in found.failed if row.code == "EMPTY"] == [None]


def test_json_and_saved_tables_are_read_back(spark: SparkSession, tmp_path: Path, photos: Path) -> None:
    sinks = [{"path": str(tmp_path / "out"), "format": "json", "partition_by": ["label"]}, {"table": "report_of_test"}]
    try:
        for sink in sinks:
            spec = job(tmp_path, {"images": str(photos)}, sink=sink)
            result = run_job(spec)
            found = figures_of(rows_of_run(spark, spec, result.run_id), result.rows)
            assert (found.rows, found.errors) == (9, {"EMPTY": 1, "UNSUPPORTED_FORMAT": 1})
            assert found.labels[0].rows == 4
    finally:
        spark.sql("DROP TABLE IF EXISTS report_of_test")
