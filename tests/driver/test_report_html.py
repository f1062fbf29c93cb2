"""What report.json and report.html say of a run whose figures are known."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from sparkinfer.core.errors import BudgetExceededError
from sparkinfer.driver.reporting.content import content_of
from sparkinfer.driver.reporting.html import page
from sparkinfer.driver.reporting.images import Thumbnails
from sparkinfer.driver.reporting.sheet import sheet_rows
from tests.driver.report_samples import ENVIRONMENT, HOSTILE, VERSIONS, content, hostile_page, run, sample_page, table


class Parsed(HTMLParser):
    """Tags with their attributes, and the texts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._in_style = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._in_style = tag == "style"

    def handle_endtag(self, tag):
        self._in_style = False

    def handle_data(self, data):
        if not self._in_style and data.strip():
            self.texts.append(data.strip())

    def of(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def test_the_figures_of_the_run():
    found = json.loads(json.dumps(content()))
    assert (found["state"], found["rows"], found["error"]) == ("done", 2000, None)
    assert found["started"] == "2026-02-03T04:05:06+00:00"
    assert found["progress"]["rows_per_second"] == 100  # 2,000 rows in 20 s
    assert found["stages"]["decode"]["count"] == 2000
    assert found["stages"]["decode"]["seconds"] == pytest.approx(8)  # 2,000 x 4 ms
    # All values are 4 ms, and the bucket that holds it goes from 3.3 to 4.7 ms.
    assert 0.0033 < found["stages"]["decode"]["p50"] <= found["stages"]["decode"]["p99"] <= 0.0047
    assert found["stages"]["read"]["p95"] is None
    assert found["work"]["images_per_call"] == 50
    assert found["work"]["busy_share"] == 0.6  # 24 of 2 x 20 s
    assert found["table"]["confidence_quantiles"] == {"p5": 0.05, "p50": 0.5, "p95": 0.95}


def test_the_balance_of_partitions():
    seconds = content()["balance"]["seconds"]  # 3, 3.5, ... 6.5
    assert (seconds["mean"], seconds["p50"], seconds["p95"], seconds["largest"]) == (4.75, 4.5, 6.5, 6.5)
    assert seconds["largest_over_mean"] == pytest.approx(6.5 / 4.75, rel=1e-5)
    assert [record["partition"] for record in content()["partition_table"]] == [7, 6, 5, 4, 3, 2, 1, 0]


def test_secrets_stay_out():
    assert content()["spec"]["sink"]["options"]["password"] == "***"
    assert "hunter2" not in sample_page()


def test_the_page_shows_them():
    texts = Parsed(sample_page()).texts
    for text in ("product-photos", "✓ done", "2,000", "100", "5.0 % of all rows", "25.5", "1,000 classes"):
        assert any(text in shown for shown in texts), text
    assert "60 rows, 3.0 %" in texts  # TRUNCATED: 60 of 2,000
    assert "the image data ends early" in texts
    assert {"tabby", "Egyptian cat", "class 7", "50.0 %", "25.0 %"} <= set(texts)
    assert "Other classes: 456 rows." in texts  # 1,900 - 950 - 475 - 19


def test_the_contact_sheet():
    parsed = Parsed(sample_page())
    images = parsed.of("img")
    assert len(images) == 12 + 6 + 1
    assert all(image["src"].startswith("data:image/jpeg;base64,/9j/") for image in images)
    assert images[0]["alt"] == "tabby 50.0%"
    assert "not an image that can be decoded" in parsed.texts  # in place of the picture of a text file


def test_failing_images_come_by_turns():
    rows = sheet_rows({"failed": [{"code": c, "path": f"{c}{i}"} for c in "AB" for i in range(9)] + [NULL_PATH]})
    assert [row["path"] for row in rows["Failing images"]] == [f"{c}{i}" for i in range(6) for c in "AB"]


NULL_PATH = {"code": "READ_FAILED", "path": None}


@pytest.mark.parametrize("text", [sample_page(), hostile_page()], ids=["plain", "hostile"])
def test_nothing_is_loaded_and_nothing_runs(text):
    parsed = Parsed(text)
    names = {tag for tag, _ in parsed.tags}
    assert not names & {"script", "iframe", "object", "embed", "base", "form"}
    for _, attributes in parsed.tags:
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
    sources = [a[name] for _, a in parsed.tags for name in ("src", "href", "srcset") if name in a]
    assert all(source.startswith(("data:", "#")) for source in sources)
    policy = next(a["content"] for a in parsed.of("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy
    assert not re.search(r"url\(|@import", text)


def test_hostile_texts_are_shown_as_they_are():
    parsed = Parsed(hostile_page())
    assert parsed.texts.count(HOSTILE) >= 4  # its name, its error, its hint, its output
    assert len(parsed.of("title")) >= 1
    assert len(parsed.of("img")) == 12 + 6 + 1


def test_every_tag_is_closed():
    open_tags: list[str] = []

    class Balance(HTMLParser):
        def handle_starttag(self, tag, attrs):
            if tag not in {"meta", "link", "img", "br", "wbr"}:
                open_tags.append(tag)

        def handle_startendtag(self, tag, attrs):
            pass

        def handle_endtag(self, tag):
            assert open_tags.pop() == tag

    Balance().feed(hostile_page())
    assert open_tags == []


def test_a_run_that_failed_says_so():
    error = BudgetExceededError("100 of 2,000 rows failed, allowed is a share of 0.01", hint="mend the cause")
    found = content_of(run(error=error), "nothing was written", VERSIONS, ENVIRONMENT)
    assert (found["state"], found["error"]["exit_status"]) == ("failed", 3)
    texts = Parsed(page(found, Thumbnails(note="nothing was written"))).texts
    assert "✕ failed" in texts
    assert "The run failed: BudgetExceededError" in texts
    assert "mend the cause" in texts
    assert "No pictures: nothing was written." in texts


def test_foreign_errors_are_cut_to_a_line_without_secrets():
    error = RuntimeError("s3a://KEY:SECRET@bucket is gone\n  at org.apache.spark ...")
    assert content(error=error)["error"]["message"] == "RuntimeError: s3a://***@bucket is gone"


def test_a_run_without_figures():
    empty = run()
    bare = type(empty)(
        spec=empty.spec,
        run_id="1",
        model=empty.model,
        started=empty.started,
        snapshot=type(empty.snapshot)(run_id="1"),
        outcome={"rows": 0, "errors": {}, "output": "out"},
    )
    found = content_of(bare, "this run has written no rows", {}, {"settings": {}})
    texts = Parsed(page(found, Thumbnails(note="this run has written no rows"))).texts
    assert "No task has told its figures." in texts
    assert "The run was too short for a curve." in texts
    assert "No row failed." in texts


def test_a_quantile_of_the_confidence_is_exact_to_its_bin():
    assert [table().confidence_quantile(share) for share in (0.25, 0.5, 1)] == pytest.approx([0.25, 0.5, 1])


@pytest.mark.parametrize(("said", "status"), [((), 130), (("SIGINT",), 130), (("SIGTERM",), 143)])
def test_a_run_that_was_stopped_says_by_what(said, status):
    error = content(error=KeyboardInterrupt(*said))["error"]
    assert error["exit_status"] == status
    assert error["message"] == f"stopped by {said[0] if said else 'SIGINT'}"


def test_what_nobody_knows_is_null_and_the_keys_stay():
    known = content()
    bare = run()
    nothing = content_of(replace(bare, outcome={}, error=OSError("gone")), "the table is gone", VERSIONS, ENVIRONMENT)
    assert nothing.keys() == known.keys()
    assert nothing["table"].keys() == known["table"].keys()
    assert nothing["table"]["note"] == "the table is gone"
    assert {nothing["table"][key] for key in nothing["table"] if key != "note"} == {None}
    assert (nothing["rows"], nothing["seconds"], nothing["sharding"], nothing["retry"]) == (None,) * 4
    page(nothing, Thumbnails(note="nothing"))


def test_devices_are_told_with_what_they_did():
    assert content()["devices"] == [
        {
            "host": "node-1",
            "kind": "cuda",
            "name": "cuda:0",
            "uuid": "GPU-1",
            "memory_total_bytes": 24_000_000_000,
            "peak_memory_used_bytes": 6_000_000_000,
            "mean_utilisation": 0.5,
            "busy_share": 0.6,
        }
    ]
    texts = Parsed(sample_page()).texts
    assert "cuda:0 on node-1" in texts
    told = "the model ran in 60.0 % of its tasks' time; utilisation 50.0 %; at most 6.0 GB of 24.0 GB of memory in use"
    assert told in texts
