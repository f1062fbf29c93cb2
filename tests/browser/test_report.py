"""report.html in a real browser: it reaches nothing, complains of nothing, and can be read on a phone and on a desk."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.browser.chromium import chromium, open_page
from tests.driver.report_samples import hostile_page, sample_page

pytestmark = pytest.mark.slow

FIND = Path(__file__).parents[2] / "deploy" / "find_chromium.sh"
WIDTHS = {"phone": 390, "desktop": 1280}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    in_ci = bool(os.environ.get("CI"))
    command = [str(FIND)] if in_ci else [str(FIND), "--no-install"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        why = found.stderr.strip().splitlines()[-1]
        if in_ci:
            pytest.fail(why)
        pytest.skip(why)
    with chromium(found.stdout.strip(), tmp_path_factory.mktemp("chromium")) as address:
        yield address


@pytest.fixture
def page(browser):
    with open_page(browser) as opened:
        yield opened


@pytest.fixture
def sample(tmp_path):
    file = tmp_path / "report.html"
    file.write_text(sample_page(), encoding="utf-8")
    return file


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_it_loads_nothing_and_complains_of_nothing(page, sample, width):
    page.open(sample.as_uri(), width=width)
    assert page.complaints == []
    assert {url.split(":")[0] for url in page.requests} == {"file", "data"}
    assert [url for url in page.requests if url.startswith("file:")] == [sample.as_uri()]


def test_the_network_is_really_shut(page):
    """What the test above relies on: a request would be seen, and would fail."""
    page.open("data:text/html,<img src='http://example.invalid/x.png'>", width=390)
    assert "http://example.invalid/x.png" in page.requests
    assert any("ERR_NAME_NOT_RESOLVED" in text for text in page.complaints)


@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_charts_and_pictures_are_drawn(page, sample, width):
    page.open(sample.as_uri(), width=width)
    boxes = page.evaluate(
        "[...document.querySelectorAll('svg.chart')].map(c => [c.getBoundingClientRect(),"
        " Math.max(...[...c.querySelectorAll('rect,polyline')].map(s => s.getBoundingClientRect().height))])"
        ".map(([box, shape]) => [box.width, box.height, shape])"
    )
    assert len(boxes) == 3  # throughput, confidence, partitions
    for drawn_width, height, tallest in boxes:
        assert drawn_width > 0.6 * min(width, 500)
        assert height >= 150
        assert 0.4 * height < tallest <= 1.05 * height  # axes end at a round number above the largest value
    pictures = page.evaluate("[...document.images].map(i => [i.naturalWidth, i.getBoundingClientRect().width])")
    assert len(pictures) == 12 + 6 + 1
    assert all(natural > 0 and 80 <= shown <= 200 for natural, shown in pictures)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS.values(), ids=WIDTHS)
def test_it_can_be_read(page, sample, width, dark):
    page.open(sample.as_uri(), width=width, dark=dark)
    page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
    assert page.evaluate("document.documentElement.scrollWidth") == width  # nothing to scroll sideways
    texts = page.evaluate(_TEXTS)
    assert len(texts) > 200
    assert min(size for _, size, _, _ in texts) >= 12
    assert max(right for _, _, _, right in texts) <= width
    # WCAG 2.2, success criterion 1.4.3: a ratio of 4.5 for text of this size.
    assert {text: ratio for text, _, ratio, _ in texts if ratio < 4.5} == {}


def test_links_lead_to_sections(page, sample):
    page.open(sample.as_uri(), width=390)
    missing = page.evaluate(
        "[...document.querySelectorAll('nav a')].filter(a => !document.querySelector(a.hash)).map(a => a.hash)"
    )
    assert missing == []


def test_hostile_texts_change_nothing(page, tmp_path):
    file = tmp_path / "hostile.html"
    file.write_text(hostile_page(), encoding="utf-8")
    page.open(file.as_uri(), width=390)
    assert page.evaluate("document.title") != "owned"
    assert page.evaluate("document.scripts.length") == 0
    assert page.evaluate("[...document.images].every(i => i.src.startsWith('data:image/jpeg;'))")
    assert page.complaints == []
    assert [url for url in page.requests if url.startswith("http")] == []
    assert page.evaluate("document.documentElement.scrollWidth") == 390


# Every text that is shown: [text, font size in CSS pixels, contrast with what is behind, right edge].
_TEXTS = """
(() => {
  const channel = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const behind = element => {
    for (let e = element; e; e = e.parentElement) {
      const colour = numbers(getComputedStyle(e).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const range = document.createRange();
    range.selectNodeContents(walker.currentNode);
    const box = range.getBoundingClientRect();
    if (!walker.currentNode.data.trim() || !box.width || element.closest('svg')) continue;
    const clip = element.closest('.caption span, .file, .scroll');
    const right = clip ? clip.getBoundingClientRect().right : box.right;
    const style = getComputedStyle(element);
    const [one, other] = [luminance(numbers(style.color)), luminance(behind(element))].sort((a, b) => b - a);
    const text = walker.currentNode.data.trim().slice(0, 40);
    found.push([text, parseFloat(style.fontSize), (one + 0.05) / (other + 0.05), right]);
  }
  return found;
})()
"""
