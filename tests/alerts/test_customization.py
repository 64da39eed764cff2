"""Overrides of our alerts and rules of a stack's own: the same in Mimir, Loki, Kubernetes and Grafana, and still valid there."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import alerts
from alerts import grafana_rules
from alerts.customization import Customization, Override, threshold, with_threshold
from alerts.links import DRAIN, Links
from alerts.model import Rule, rule_file
from alerts.prometheus_rule import prometheus_rules
from gpu_fleet import toolchain

HOT = "GpuTemperatureHigh"
OWN = """\
groups:
  - name: our-models
    interval: 1m
    rules:
      - alert: ModelServerDown
        expr: up{job="vllm"} == 0
        labels: {severity: critical}
        annotations:
          {summary: "{{ $labels.instance }} serves no model", action: Restart it., runbook: "https://wiki.example.com/models"}
"""


def custom(name: str = HOT, **changes: object) -> Customization:
    return Customization(overrides={name: Override(**changes)})  # type: ignore[arg-type]


def of(name: str, given: Customization, backend: alerts.Backend = "mimir") -> list[Rule]:
    return [rule for group in alerts.rule_groups(backend, custom=given) for rule in group.rules if rule.get("alert") == name]


def in_grafana(given: Customization) -> list[grafana_rules.GrafanaRule]:
    return [rule for group in grafana_rules.rule_groups(["mimir", "loki"], custom=given) for rule in group.rules]


def linked(name: str, given: Customization) -> Rule:
    links = Links(runbooks="https://git.example.com/gpu-fleet")
    (rule,) = [rule for group in alerts.rule_groups("mimir", links, given) for rule in group.rules if rule.get("alert") == name]
    return rule


def test_without_overrides_the_rules_are_those_of_the_files():
    assert alerts.rule_groups("mimir", custom=Customization()) == alerts.rule_groups("mimir")


def test_an_override_changes_the_rule_alike_for_every_server_that_evaluates_it():
    given = Customization(overrides={HOT: Override(threshold=88, for_="15m", severity="critical", labels={"team": "ml"})})
    (rule,) = of(HOT, given)
    assert rule["expr"].endswith(">= 88") and rule["for"] == "15m"
    assert rule["labels"] == {"severity": "critical", "scope": "gpu", "team": "ml"}
    assert "for 15 minutes" in rule["annotations"]["summary"], "the page must not say 10 minutes any more"
    (of_grafana,) = [one for one in in_grafana(given) if one.title == HOT]
    assert rule["expr"] in of_grafana.expr and (of_grafana.for_, of_grafana.severity) == ("15m", "critical")
    assert of_grafana.labels["team"] == "ml" and of_grafana.on_error == "Error", "a critical alert must not be missed"
    objects = prometheus_rules(namespace="gpu", labels={}, custom=given)
    in_kubernetes = [one for made in objects for group in made["spec"]["groups"] for one in group["rules"]]
    assert [one["labels"] for one in in_kubernetes if one.get("alert") == HOT] == [rule["labels"]]


def test_a_new_page_has_the_drain_commands_and_an_alert_that_no_longer_pages_has_none():
    assert linked(HOT, custom(severity="critical"))["annotations"].keys() >= DRAIN.keys()
    lost = "GpuRowRemapFailed"
    assert not linked(lost, custom(lost, severity="warning"))["annotations"].keys() & DRAIN.keys()


def test_a_disabled_alert_is_in_no_server_and_takes_its_group_along_if_it_was_alone():
    for name in ("GpuDriverAsksForAction", "GpuFleetTestAlert", "RecordingRulesSilent"):
        given = custom(name, is_enabled=False)
        assert not [rule for backend in ("mimir", "loki", "grafana") for rule in of(name, given, backend)]
    assert alerts.rule_groups("grafana", custom=custom("RecordingRulesSilent", is_enabled=False)) == []


def test_one_rule_of_an_alert_is_selected_by_its_severity_or_its_xid():
    thresholds = {rule["labels"]["severity"]: threshold(rule["expr"]) for rule in of("HostDiskFilling", custom())}
    given = custom("HostDiskFilling critical", threshold=0.98)
    assert {rule["labels"]["severity"]: threshold(rule["expr"]) for rule in of("HostDiskFilling", given)} == {
        **thresholds,
        "critical": "0.98",
    }
    severities = {
        rule["labels"]["xid"]: rule["labels"]["severity"] for rule in of("GpuXid", custom("GpuXid 79", severity="info"))
    }
    assert severities["79"] == "info" and "critical" in severities.values()


def test_critical_and_warning_of_one_condition_become_one_rule_when_both_are_warnings():
    given = custom("GpuEccUncorrected", severity="warning")
    (rule,) = of("GpuEccUncorrected", given)
    for before in of("GpuEccUncorrected", custom()):
        assert before["expr"].strip() in rule["expr"]
    titles = [one.title for one in in_grafana(given)]
    assert len(titles) == len(set(titles)), "Grafana refuses two rules of one title"


def test_labels_of_the_stack_are_on_every_alert_and_replace_none():
    given = Customization(overrides={HOT: Override(labels={"team": "ml"})}, labels={"team": "gpu"})
    for backend in ("mimir", "loki", "grafana"):
        for group in alerts.rule_groups(backend, custom=given):
            for rule in group.rules:
                expected = "ml" if rule.get("alert") == HOT else "gpu"
                assert rule["labels"]["team"] == expected if "alert" in rule else "team" not in rule.get("labels", {})


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("max by (gpu) (gpu:temperature:celsius) >= 85", "85"),
        ('(x{a=">= 7"} > 0.5) unless on (instance) y > 49', "0.5"),
        ("x < 0.01 and y > 1073741824", "0.01"),
        ("time() - x > 300", "300"),
        ("x > 1 or y > 2", None),
        ("up == 0", None),
        ("max by (gpu) (x > 0 != 3)", None),
        ("x", None),
        ('sum by (instance) (count_over_time({job="kernel"} |= "x > 3" [10m])) > 5', "5"),
    ],
)
def test_the_threshold_is_the_number_that_decides_whether_the_alert_fires(expression: str, expected: str | None):
    assert threshold(expression) == expected
    changed = with_threshold(expression, 12.5)
    assert changed == expression if expected is None else threshold(changed) == "12.5"
    assert changed.replace("12.5", expected or "12.5", 1) == expression, "nothing else changes"


def test_rules_of_a_stack_s_own_are_loaded_beside_ours(tmp_path: Path):
    file = tmp_path / "models.yaml"
    file.write_text(OWN)
    given = Customization(files={"rules": (file,)}, labels={"team": "gpu"})
    (rule,) = of("ModelServerDown", given)
    assert rule["labels"] == {"severity": "critical", "team": "gpu"}
    assert linked("ModelServerDown", given)["annotations"]["runbook_url"] == "https://wiki.example.com/models"
    assert "ModelServerDown" in {one.title for one in in_grafana(given)}
    assert "gpu-fleet-custom-models" in {
        one["metadata"]["name"] for one in prometheus_rules(namespace="gpu", labels={}, custom=given)
    }


def test_promtool_accepts_the_rules_with_overrides_of_every_kind(tmp_path: Path):
    own = tmp_path / "models.yaml"
    own.write_text(OWN)
    overrides = {
        HOT: Override(threshold=88, for_="1h30m", labels={"team": 'it\'s "ours"'}),
        "GpuEccUncorrected": Override(severity="warning"),
        "HostDiskFilling critical": Override(threshold=0.98),
        "GpuMissing": Override(is_enabled=False),
    }
    given = Customization(overrides=overrides, labels={"team": "gpu"}, files={"rules": (own,)})
    file = tmp_path / "all.yaml"
    file.write_text(rule_file(alerts.rule_groups("mimir", custom=given)))
    command = [toolchain.find("promtool"), "check", "rules", "--lint-fatal", file]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_an_xid_with_an_override_of_its_own_is_left_to_its_rule_in_mimir() -> None:
    """Loki has one rule for all codes: it would page what the stack made a warning."""

    def page(**overrides: Override) -> str:
        groups = alerts.rule_groups(
            "loki", custom=Customization(overrides={name.replace("_", " "): one for name, one in overrides.items()})
        )
        [rule] = [rule for group in groups for rule in group.rules if rule["alert"] == "GpuXid"]
        return str(rule["expr"])

    assert "|79|" in page()
    assert "|79|" not in page(GpuXid_79=Override(severity="warning")) and "|74|" in page(GpuXid_79=Override(severity="warning"))
    assert "|79|" not in page(GpuXid_79=Override(is_enabled=False))
    assert page(GpuTemperatureHigh=Override(severity="critical")) == page()
