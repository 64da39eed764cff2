"""The rule tests notice a changed rule: held by what `make mutants` found, which is run anew for a rule that changes."""

from __future__ import annotations

import re

import pytest

from tests.alerts.mutants import ROOT, Origin, kept, mutants, origins

LEAST_SEEN = 0.95
ORIGINS = origins()
KEPT = kept()


def known(origin: Origin):
    return KEPT.get(str(origin.file.relative_to(ROOT)), {}).get(origin.name, {})


@pytest.mark.parametrize("origin", ORIGINS, ids=lambda origin: f"{origin.file.stem}-{origin.name}")
def test_a_rule_is_as_it_was_when_its_tests_were_tried(origin):
    assert known(origin).get("rule") == origin.digest, "the rule is new or changed: `make mutants`, and commit its outcome"
    assert known(origin)["mutants"] == len(list(mutants(origin.rule)))


def test_nothing_is_kept_of_rules_that_are_gone():
    there = {(str(origin.file.relative_to(ROOT)), origin.name) for origin in ORIGINS}
    assert {(file, name) for file, rules in KEPT.items() for name in rules} == there


def test_nearly_every_mutant_is_seen_and_each_survivor_has_its_reason():
    rules = [known(origin) for origin in ORIGINS]
    count, survivors = sum(rule["mutants"] for rule in rules), [one for rule in rules for one in rule["survivors"].items()]
    assert (count - len(survivors)) / count >= LEAST_SEEN
    assert [change for change, reason in survivors if not reason] == [], "write a test that sees it, or why nobody needs to"


def test_a_rule_is_changed_at_each_threshold_operator_and_wait():
    rule = {"alert": "A", "expr": 'max by (gpu) (x{reason!="a"}) > 5 and on (gpu) y == bool 0', "for": "5m"}
    assert [re.search(r"\[.+? -> .+?\]|for: .+", mutant.what)[0] for mutant in mutants(rule)] == [
        "[> -> >=]",
        "[> -> <]",
        "[5 -> 5.5]",
        "[5 -> 4.5]",
        "[== -> !=]",
        "[0 -> 1]",
        "[0 -> -1]",
        "[and -> unless]",
        "for: 6m",
        "for: 4m",
    ]
