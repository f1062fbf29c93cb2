"""What deploy/monitoring holds: the dashboard's queries, ready to ask a server, and the alerts; what a page says."""

from __future__ import annotations

import json
import re
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.monitoring.servers import FOLDER

__all__ = ["ALERTS", "DASHBOARD", "panel_queries", "told_by"]

DASHBOARD: dict[str, Any] = json.loads((FOLDER / "dashboard.json").read_text("utf-8"))
ALERTS: dict[str, Any] = {
    rule["alert"]: rule
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text("utf-8"))["groups"]
    for rule in group["rules"]
}


def panel_queries(**variables: str) -> dict[str, str]:
    """Every query of every panel: "title A" -> PromQL, with Grafana's variables put in.

    Args:
        variables: their values; `__rate_interval` is one too.
    """
    return {
        f"{panel['title']} {target['refId']} {target['legendFormat']}": substituted(target["expr"], variables)
        for panel in DASHBOARD["panels"]
        if panel["type"] != "row"
        for target in panel["targets"]
    }


def substituted(query: str, variables: dict[str, str]) -> str:
    """The query with `$name` and `${name}` replaced; a variable that has no value is an error."""
    return re.sub(r"\$\{?(\w+)\}?", lambda found: variables[found[1]], query)


def told_by(page: str, **labels: str) -> tuple[float, dict[str, float]]:
    """Rows and errors by code on a page, of the series with these labels."""
    samples = [
        sample
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if labels.items() <= sample.labels.items()
    ]
    (rows,) = [sample.value for sample in samples if sample.name == "sparkinfer_rows_total"]
    errors = {s.labels["code"]: s.value for s in samples if s.name == "sparkinfer_row_errors_total" and s.value}
    return rows, errors
