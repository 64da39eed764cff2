"""Grafana-managed rules: every alert of the rule files once, in Grafana's form, with the text of the ruler's alert."""

from __future__ import annotations

import re
import subprocess
from collections import Counter

import pytest
import yaml

import alerts
from alerts.grafana_rules import ALERT_LABEL, rule_groups
from gpu_fleet import toolchain

GROUPS = rule_groups(["mimir", "loki"])
RULES = [rule for group in GROUPS for rule in group.rules]
BY_TITLE = {rule.title: rule for rule in RULES}
# What Go's templates offer in Grafana's annotations, of what ours use. Source: its documentation, "Annotation and label template
# reference", v12.4, read 2026-11-21. `query`, which Prometheus has, yields nothing there.
KNOWN_WORDS = {"if", "else", "end", "eq", "ge", "index", "match", "toLower"} | {
    "humanize",
    "humanize1024",
    "humanizeDuration",
    "humanizePercentage",
}


def test_every_alert_of_the_ruler_is_there_once():
    of_ruler = Counter(
        (rule["alert"], rule["labels"].get("xid"), rule["labels"]["severity"])
        for backend in ("mimir", "grafana")
        for group in alerts.rule_groups(backend)
        for rule in group.rules
        if "alert" in rule
    )
    of_grafana = Counter(
        (rule.labels[ALERT_LABEL], rule.labels.get("xid"), rule.severity) for rule in RULES if rule.source == "mimir"
    )
    assert of_grafana == of_ruler


def test_loki_s_copies_of_mimir_s_alerts_are_left_out():
    assert {rule.title for rule in RULES if rule.source == "loki"} == set()


def test_without_loki_nothing_queries_it():
    assert all(rule.source == "mimir" for group in rule_groups(["mimir"]) for rule in group.rules)


def test_titles_and_groups_are_unique():
    assert len(BY_TITLE) == len(RULES), "Grafana's plugin takes no two rules of one name in a folder"
    assert len({group.name for group in GROUPS}) == len(GROUPS)


def test_an_interval_is_one_that_grafana_s_scheduler_can_keep():
    assert {group.name: group.interval_s for group in GROUPS if group.interval_s % 10} == {}
    assert all(group.interval_s > 0 for group in GROUPS)


@pytest.mark.parametrize(
    ("title", "wait", "on_error"),
    [
        ("GpuXid 79", "0s", "Error"),  # an event pages at once
        ("HostSilent", None, "Error"),
        ("HostDiskFilling warning", None, "KeepLast"),
    ],
)
def test_a_rule_waits_as_in_the_ruler_and_has_its_error_state(title, wait, on_error):
    """`wait`: None, as the rule file says it."""
    name, _, severity = title.partition(" ")
    written = "".join(file.read_text() for file in alerts.rule_files("mimir"))
    rule = BY_TITLE[title]
    if wait is None:
        (block,) = [
            text
            for text in re.split(r"(?m)^ *- (?=alert|record)", written)
            if text.startswith(f"alert: {name}\n") and f"severity: {severity or rule.severity}" in text
        ]
        wait = re.search(r"(?m)^ *for: (\w+)$", block)[1]
    assert (rule.for_, rule.on_error) == (wait, on_error)


def test_annotations_are_in_grafana_s_words():
    for rule in RULES:
        for action in re.findall(r"{{(.*?)}}", "".join(rule.annotations.values())):
            bare = re.sub(r'"[^"]*"', "", action)
            variables = re.findall(r"\$[\w.]+", bare)
            known = all(name == "$values.query.Value" or re.fullmatch(r"\$labels(\.\w+)?", name) for name in variables)
            assert known, f"{rule.title}: {action}"
            assert set(re.findall(r"(?<![\w.$])[a-zA-Z]\w*", bare)) <= KNOWN_WORDS, f"{rule.title}: {action}"


def test_promtool_understands_the_expressions(tmp_path):
    rules = [{"alert": "A", "expr": rule.expr, "labels": {"title": rule.title}} for rule in RULES if rule.source == "mimir"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": rules}]}))
    checked = subprocess.run(
        [toolchain.find("promtool"), "check", "rules", tmp_path / "rules.yaml"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


HIDDEN = """\
rule_files: [rules.yaml]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {series: 'host:maintenance:bool{datacenter="w", cluster="c", instance="a", reason="reboot"}', values: '1x10'}
      - {series: 'inventory:host:expected{datacenter="w", cluster="c", instance="a"}', values: '1x10'}
      - {series: 'inventory:host:expected{datacenter="w", cluster="c", instance="b"}', values: '1x10'}
      - {series: 'host:reported:bool{datacenter="w", cluster="c", instance="a"}', values: '1x10'}
      - {series: 'host:reported:bool{datacenter="w", cluster="c", instance="b"}', values: '1x10'}
    promql_expr_test:
      - {expr: 'count by (instance) (ALERTS)', eval_time: 5m, exp_samples: [{labels: '{instance="b"}', value: 1}]}
"""


def test_who_hides_whom_is_in_the_expression_because_grafana_has_no_inhibition(tmp_path):
    """A host in maintenance may be silent, another may not."""
    (tmp_path / "rules.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": "g", "rules": [{"alert": "A", "expr": BY_TITLE["HostSilent"].expr}]}]})
    )
    (tmp_path / "test.yaml").write_text(HIDDEN)
    tested = subprocess.run(
        [toolchain.find("promtool"), "test", "rules", tmp_path / "test.yaml"], capture_output=True, text=True, check=False
    )
    assert tested.returncode == 0, tested.stdout + tested.stderr
