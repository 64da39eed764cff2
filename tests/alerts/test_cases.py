"""Every alert has its cases in alerts/tests: one step before it fires, when it fires, without any series, and counter resets."""

from __future__ import annotations

import itertools
import re
import subprocess
from collections import defaultdict
from collections.abc import Iterator

import pytest
import yaml

import alerts
from gpu_fleet import toolchain
from tests.alerts.test_rules import RULE_TESTS

RULES = [rule for group in alerts.rule_groups("mimir") for rule in group.rules if "alert" in rule]
ALERTS = sorted({rule["alert"] for rule in RULES})
COUNTED = sorted({rule["alert"] for rule in RULES if re.search(r"\b(increase|rate|changes)\(|:total\b(?!\")", rule["expr"])})
KINDS = ("first event", "again", "reset")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

# Cases that are part of a test with another name, and cases that do not apply to an alert.
ELSEWHERE: dict[tuple[str, str], str] = {}
DOES_NOT_APPLY = {
    ("MetricsLost", "first event"): "a single rejection is a hiccup: only a problem of five minutes raises the alert",
    ("RuleEvaluationFailing", "first event"): "a single failure is a hiccup: only a problem of five minutes raises the alert",
    ("GpuEccCorrectedOften", "first event"): "single corrected errors are normal",
    ("HostMemoryErrorsCorrected", "first event"): "single corrected errors are normal",
    ("GpuPcieReplaysOften", "first event"): "single replays are normal",
    ("HostRepeatsFailures", "first event"): "a failure has alerts of its own: only the third raises this one",
}


def seconds(duration: str) -> int:
    return sum(int(number) * SECONDS[unit] for number, unit in re.findall(r"(\d+)([smhd])", str(duration)))


def _cases() -> Iterator[tuple[int, dict]]:
    for file in RULE_TESTS:
        content = yaml.load(file.read_text(), Loader=yaml.CSafeLoader)
        for case in content["tests"]:
            yield seconds(content["evaluation_interval"]), case


CASES = list(_cases())  # each test with its evaluation interval in seconds
BY_NAME = {case["name"]: case for _, case in CASES}


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_is_silent_one_step_before_it_fires(alert):
    for step, case in CASES:
        firing: dict[int, bool] = defaultdict(bool)
        for check in case.get("alert_rule_test", ()):
            if check["alertname"] == alert:
                firing[seconds(check["eval_time"])] = bool(check["exp_alerts"])
        if any(fires and firing.get(at - step) is False for at, fires in firing.items()):
            return
    raise AssertionError("no test is silent at one evaluation and firing at the next")


@pytest.mark.parametrize("alert", COUNTED)
@pytest.mark.parametrize("kind", KINDS)
def test_an_alert_on_a_counter_has_cases_for_the_first_event_a_repeat_and_a_reset(alert, kind):
    found = [case for name, case in BY_NAME.items() if name.startswith(f"{alert}, {kind}: ")]
    if (alert, kind) in DOES_NOT_APPLY:
        assert found == [], "the case exists: remove the exception"
        return
    cases = found or [BY_NAME[ELSEWHERE[alert, kind]]]
    named = alert if found else ""  # cases with another name check the recorded count
    assert any(is_shown(kind, case, named) for case in cases), "the case does not show what its name says"


def is_shown(kind: str, case: dict, named: str) -> bool:
    """A first event fires, a repeat is checked more than once, and a reset has a series that starts over."""
    checks = [(one["alertname"], one["exp_alerts"]) for one in case.get("alert_rule_test", ())]
    checks += [(one["expr"], one["exp_samples"]) for one in case.get("promql_expr_test", ())]
    fires = [bool(expected) for about, expected in checks if named in about]
    if kind == "reset":
        return bool(fires) and any(starts_over(series["values"]) for series in case["input_series"])
    return True in fires and (kind == "first event" or len(fires) > 1)


def starts_over(values: str) -> bool:
    """Whether a series in promtool's notation (`7x20 0x30`, `0+10x5`) falls, or has a gap."""
    starts = [float(one) for one in re.findall(r"(?:^|\s)(-?\d+(?:\.\d+)?)", values)]
    return any(after < before for before, after in itertools.pairwise(starts)) or "_" in values or "stale" in values


def test_no_alert_fires_without_series(tmp_path):
    test = {
        "rule_files": [str(file) for file in alerts.rule_files("mimir")],
        "evaluation_interval": "10m",
        "tests": [
            {
                "interval": "10m",
                "input_series": [],
                "promql_expr_test": [{"expr": "ALERTS", "eval_time": "1h", "exp_samples": []}],
            }
        ],
    }
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    ran = subprocess.run(
        [toolchain.find("promtool"), "test", "rules", tmp_path / "test.yaml"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
