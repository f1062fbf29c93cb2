"""prometheus.yml, alerts.yml and the tests of the alerts, by promtool; and that those tests can fail."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.monitoring.panels import ALERTS
from tests.monitoring.servers import FOLDER


def promtool(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, check=False)


def test_the_configuration_is_valid(monitoring):
    answer = promtool(monitoring, "check", "config", "prometheus.yml")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "SUCCESS" in answer.stdout
    assert "WARNING" not in answer.stdout + answer.stderr  # a file of targets that is not there


def test_the_rules_are_valid(monitoring):
    answer = promtool(monitoring, "check", "rules", "alerts.yml")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert f"SUCCESS: {len(ALERTS)} rules found" in answer.stdout


def test_every_alert_fires_and_is_silent_as_written_down(monitoring):
    answer = promtool(monitoring, "test", "rules", "alerts_test.yml")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "SUCCESS" in answer.stdout


def test_every_alert_is_written_down_firing_and_silent():
    tests = yaml.safe_load((FOLDER / "alerts_test.yml").read_text("utf-8"))["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == set(ALERTS)
    for test in tests:
        firing = {alert["exp_labels"]["name"] for case in test["alert_rule_test"] for alert in case["exp_alerts"]}
        given = {part.split('name="')[1].split('"')[0] for part in (s["series"] for s in test["input_series"])}
        assert given > firing or any(not case["exp_alerts"] for case in test["alert_rule_test"]), test["name"]


@pytest.mark.parametrize("change", ["never", "always", "gone"])
@pytest.mark.parametrize("alert", ALERTS)
def test_a_broken_alert_is_found(monitoring, tmp_path, alert, change):
    rules = yaml.safe_load((monitoring / "alerts.yml").read_text("utf-8"))
    (group,) = rules["groups"]
    (rule,) = [rule for rule in group["rules"] if rule["alert"] == alert]
    if change == "gone":
        group["rules"].remove(rule)
    else:
        rule["expr"] = f"({rule['expr']}) > Inf" if change == "never" else "sparkinfer_tasks or sparkinfer_rows_total"
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(rules))
    shutil.copy(monitoring / "alerts_test.yml", tmp_path)
    answer = promtool(tmp_path, "test", "rules", "alerts_test.yml")
    assert answer.returncode == 1
    assert alert in answer.stdout + answer.stderr
