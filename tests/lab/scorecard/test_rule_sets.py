"""Another rule set on the same tapes."""

from __future__ import annotations

import pytest

from alerts.alertmanager import alertmanager_config
from alerts.inventory import inventory_groups
from alerts.notifications import Notifications, Receiver
from lab.scorecard.score import RULE_SET
from lab.scorecard.stores import BadRules, RuleSet, by_rule_set, merged_inventory

GROUP = "groups:\n  - name: g\n    rules: [{alert: A, expr: up == 0}]\n"


def test_rule_files_prometheus_rule_objects_and_loki_s_directory_are_read(tmp_path):
    (tmp_path / "loki").mkdir()
    (tmp_path / "plain.yaml").write_text(GROUP)
    (tmp_path / "loki/lines.yml").write_text(GROUP)
    (tmp_path / "object.yaml").write_text(
        "kind: PrometheusRule\nspec:\n  groups:\n    - name: g\n      interval: 30s\n      rules: [{alert: B, expr: up == 1}]\n"
    )
    rules = RuleSet(tmp_path)
    name = tmp_path.name
    assert [(group.name, group.interval) for group in rules.mimir] == [(f"{name}-object-g", "30s"), (f"{name}-plain-g", "1m")]
    assert [group.name for group in rules.loki] == [f"{name}-lines-g"]
    assert all(rule["labels"] == {RULE_SET: name} for group in [*rules.mimir, *rules.loki] for rule in group.rules)


def test_alerts_about_metrics_that_no_host_has_are_found(tmp_path):
    (tmp_path / "a.yaml").write_text(
        "groups:\n- name: g\n  rules:\n"
        "  - {record: r:a, expr: sum(node_load1)}\n"
        "  - {alert: Seen, expr: 'rate(node_load1{job=\"x_y\"}[5m]) > 1 and on (instance) r:a > 0 or up == 0'}\n"
        "  - {alert: Blind, expr: 'sum by (some_label) (fsx_used_bytes) / node_load1 > 0.9'}\n"
    )
    assert RuleSet(tmp_path).blind(frozenset({"node_load1", "up"})) == ["Blind (fsx_used_bytes)"]


def test_alerts_of_two_rule_sets_are_neither_grouped_nor_inhibited_together():
    config = alertmanager_config(Notifications(receiver="r", receivers=(Receiver(name="r", channels=()),)))
    assert config["inhibit_rules"]
    separate = by_rule_set(config)
    assert all(each["equal"][-1] == RULE_SET for each in separate["inhibit_rules"])
    assert separate["route"]["group_by"][-1] == RULE_SET
    assert all(route["group_by"][-1] == RULE_SET for route in separate["route"]["routes"])


def test_a_directory_without_rules_is_an_error_that_names_it(tmp_path):
    with pytest.raises(BadRules, match="no rule group in 0 YAML files"):
        RuleSet(tmp_path)
    with pytest.raises(BadRules, match="no such directory"):
        RuleSet(tmp_path / "missing")


def test_the_inventory_of_a_batch_replaces_no_group_of_the_rules():
    groups = inventory_groups("scorecard", "a", {"a": 4}) + inventory_groups("scorecard", "b", {"b": 4})
    (merged,) = merged_inventory(groups)
    assert merged.name not in {group.name for group in RuleSet().mimir}
    assert len(merged.rules) == 4
