"""Numbers, texts and shapes of the report, from arithmetic."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree as ET

import pytest

from sparkinfer.driver.reporting.charts import axis, bar, columns, plot, timeline
from sparkinfer.driver.reporting.html import rates
from sparkinfer.driver.reporting.text import duration, esc, number, percent, short_seconds


@pytest.mark.parametrize(
    ("largest", "whole", "ticks"),
    [
        (100, False, [0, 25, 50, 75, 100]),
        (101, False, [0, 50, 100, 150, 200]),
        (7, False, [0, 2, 4, 6, 8]),
        (0.9, False, [0, 0.25, 0.5, 0.75, 1]),
        (3, True, [0, 1, 2, 3, 4]),
        (9, True, [0, 3, 6, 9, 12]),
        (0, True, [0, 1, 2, 3, 4]),
    ],
)
def test_axes_have_round_numbers_and_hold_the_largest_value(largest, whole, ticks):
    assert axis(largest, whole=whole) == ticks


def test_columns_are_as_high_as_their_values():
    drawn = ET.fromstring(columns([0, 5, 10, 40], 20, ["none", "a", "b", "<c>"], label="four bars"))
    bars = drawn.findall("rect")
    # Of 100 units: nothing, a quarter, a half, and no more than all.
    assert [float(rect.get("height")) for rect in bars] == [0, 25, 50, 100]
    assert [float(rect.get("y")) for rect in bars] == [100, 75, 50, 0]
    assert [rect.findtext("title") for rect in bars] == ["none", "a", "b", "<c>"]
    assert drawn.get("viewBox") == "0 0 4 100"
    assert drawn.get("aria-label") == "four bars"


def test_a_timeline_runs_from_edge_to_edge():
    drawn = ET.fromstring(timeline([(10, 0), (15, 50), (30, 200)], 200, label="", level=100))
    # 5 of 20 seconds are a quarter of the 1,000 units of width; 50 of 200 leaves three quarters above.
    assert drawn.find("polyline").get("points") == "0.0,100.00 250.0,75.00 1000.0,0.00"
    assert drawn.find("polygon").get("points") == "0,100 0.0,100.00 250.0,75.00 1000.0,0.00 1000,100"
    level = drawn.find("line[@class='level']")
    assert (level.get("y1"), level.get("y2")) == ("50.00", "50.00")


def test_an_empty_timeline_draws_nothing():
    drawn = ET.fromstring(timeline([], 1, label=""))
    assert drawn.find("polyline") is None


def test_a_bar_fills_its_share():
    assert [rect.get("width") for rect in ET.fromstring(bar(0.375)).findall("rect")] == ["100", "37.50"]


def test_a_plot_names_its_ticks_from_the_top():
    drawn = plot("<svg/>", [0, 2500, 5000], ["0 s", "9 s"], "rows", "time")
    assert re.findall(r"<span>(.*?)</span>", drawn) == ["5,000", "2,500", "0", "0 s", "9 s"]


def test_rates_are_of_each_interval():
    history = [{"seconds": s, "rows": rows} for s, rows in [(2, 100), (2, 100), (4, 100), (4.5, 200)]]
    assert rates(history) == [(0, 50), (2, 50), (4, 0), (4.5, 200)]
    assert rates([]) == []


def test_a_long_course_is_drawn_with_fewer_points():
    # A row in each second of odd number: in two seconds always one. 241 points are a few too many for every second.
    points = rates([{"seconds": s, "rows": (s + 1) // 2} for s in range(1, 242)])
    assert len(points) < 120
    assert points[-1][0] == 241
    assert sum(rate * (now - before) for (before, _), (now, rate) in pairwise(points)) == pytest.approx(121)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1234567, "1,234,567"), (12.345, "12.3"), (0.012345, "0.0123"), (1234.5, "1,234"), (None, "\u2013")],
)
def test_numbers(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("part", "whole", "text"),
    [
        (0, 5, "0 %"),
        (5, 5, "100 %"),
        (1, 21, "4.8 %"),
        (1, 1_000_000, "< 0.1 %"),
        (999_999, 1_000_000, "> 99.9 %"),
        (0, 0, "\u2013"),
    ],
)
def test_shares_are_never_rounded_to_none_or_all(part, whole, text):
    assert percent(part, whole) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (59.9, "59.9 s"),
        (59.96, "1 min 00 s"),
        (250, "4 min 10 s"),
        (3599.6, "1 h 00 min"),
        (11_100, "3 h 05 min"),
        (187_200, "2 d 4 h"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.00085, "850 µs"), (0.0123, "12.3 ms"), (1.5, "1.50 s"), (75.0, "75 s"), (None, "\u2013")]
)
def test_times_of_one_step(seconds, text):
    assert short_seconds(seconds) == text


def test_texts_can_do_nothing():
    assert esc("""<a href='x' title="y">&""") == "&lt;a href=&#x27;x&#x27; title=&quot;y&quot;&gt;&amp;"
    # A line break, the mark that turns the direction of writing around, half a character.
    assert esc("a\nb\u202ec\udc80") == r"a\nb\u202ec\udc80"
    assert len(esc("x" * 10_000)) < 1000
