"""dashboard.json: valid by Grafana's schema, up to date, and laid out as a person reads it."""

from __future__ import annotations

import copy
import re
import subprocess
import sys

import pytest

from tests.monitoring.grafana_schema import problems
from tests.monitoring.panels import DASHBOARD, panel_queries
from tests.monitoring.servers import FOLDER

PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def test_it_is_valid_by_grafanas_schema():
    assert problems(DASHBOARD) == []


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        ((), {"refesh": "15s"}, "refesh"),
        (("time",), {"form": "now-1h"}, "time.form"),
        (("panels", 1), {"titel": "Done"}, "titel"),
        (("panels", 1), {"title": 5}, "title"),
        (("panels", 1, "gridPos"), {"w": "wide"}, "grid_pos.w"),
        (("panels", 1, "options"), {"colorMode": "bright"}, "color_mode"),
        (("panels", 7, "fieldConfig", "defaults", "custom"), {"drawStyle": "crayon"}, "draw_style"),
        (("panels", 7, "fieldConfig", "defaults"), {"units": "s"}, "units"),
        (("panels", 7, "targets", 0), {"expression": "up"}, "expression"),
        (("panels", 7, "targets", 0), {"expr": 1}, "expr"),
        (("templating", "list", 1), {"hyde": 2}, "hyde"),
        (("templating", "list", 1), {"type": "choice"}, "type"),
    ],
)
def test_what_is_not_valid_is_found(path, value, where):
    broken = copy.deepcopy(DASHBOARD)
    place = broken
    for step in path:
        place = place[step]
    place.update(value)
    found = problems(broken)
    assert len(found) == 1
    assert where in found[0]


def test_it_is_what_its_builder_writes():
    command = [sys.executable, FOLDER / "build_dashboard.py", "--check"]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr


def test_panels_do_not_overlap_and_have_numbers_of_their_own():
    cells = [
        (x, y)
        for panel in DASHBOARD["panels"]
        for place in [panel["gridPos"]]
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(cells) == len(set(cells))
    assert max(x for x, _ in cells) < 24
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_every_panel_explains_itself_and_chooses_its_job():
    for panel in PANELS:
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
    for title, query in panel_queries(job="J", name="N", __rate_interval="1m").items():
        for selector in re.findall(r"sparkinfer_\w+(?:\{[^}]*\})?", query.replace("metrics_sparkinfer", "")):
            assert 'job="J", name=~"N"' in selector, title
