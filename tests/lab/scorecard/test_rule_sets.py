"""Another rule set on the same tapes."""

from __future__ import annotations

import pytest

from alerts.inventory import inventory_groups
from lab.scorecard.stores import BadRules, RuleSet, merged_inventory

GROUP = "groups:\n  - name: g\n    rules: [{alert: A, expr: up == 0}]\n"


def test_rule_files_prometheus_rule_objects_and_loki_s_directory_are_read(tmp_path):
    (tmp_path / "loki").mkdir()
    (tmp_path / "plain.yaml").write_text(GROUP)
    (tmp_path / "loki/lines.yml").write_text(GROUP)
    (tmp_path / "object.yaml").write_text(
        "kind: PrometheusRule\nspec:\n  groups:\n    - name: g\n      interval: 30s\n      rules: [{alert: B, expr: up == 1}]\n"
    )
    rules = RuleSet(tmp_path)
    assert [(group.name, group.interval) for group in rules.mimir] == [("object-g", "30s"), ("plain-g", "1m")]
    assert [group.name for group in rules.loki] == ["lines-g"]


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
