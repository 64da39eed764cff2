"""The rule tests detect a changed rule, as recorded by `make mutants`, which has to be run again for every rule that changes.

A few of the mutants run here too, so that the outcome is not only what somebody committed.
"""

from __future__ import annotations

import re

import pytest

from tests.alerts.mutants import ROOT, Origin, kept, mutants, origins, read, survives

LEAST_SEEN = 0.95
ORIGINS = origins()
KEPT = kept()


def known(origin: Origin):
    return KEPT.get(str(origin.file.relative_to(ROOT)), {}).get(origin.name, {})


def test_every_rule_is_as_it_was_when_its_tests_were_tried():
    changed = [
        f"{origin.file.stem}: {origin.name}"
        for origin in ORIGINS
        if known(origin).get("rule") != origin.digest or known(origin)["mutants"] != len(list(mutants(origin.rule)))
    ]
    assert changed == [], "new or changed: `make mutants CHANGED=1`, and commit its outcome"


def tried():
    """Of quick files: the first three of one rule, and those of another that are known to survive."""
    for origin in ORIGINS:
        if origin.name == "HostDrifted warning":
            yield from [(origin, mutant) for mutant in mutants(origin.rule)][:3]
        if origin.name == "DriverVersionSkew info":
            yield from [(origin, mutant) for mutant in mutants(origin.rule) if mutant.what in known(origin)["survivors"]]


TRIED = list(tried())


@pytest.mark.parametrize(("origin", "mutant"), TRIED, ids=[f"{origin.name}: {mutant.what}" for origin, mutant in TRIED])
def test_a_mutant_has_the_recorded_outcome(origin, mutant):
    assert survives(origin, mutant) == (mutant.what in known(origin)["survivors"])


def test_values_that_yaml_takes_for_a_number_stay_as_they_are_written():
    """Otherwise promtool refuses the case, and every mutant counts as seen."""
    series = read("tests:\n  - {series: a, values: 0x200}\n  - {series: b, values: 0x30 1x49}\n")["tests"]
    assert [one["values"] for one in series] == ["0x200", "0x30 1x49"]


def test_there_are_mutants_of_both_kinds_among_those_that_are_tried():
    assert {mutant.what in known(origin)["survivors"] for origin, mutant in TRIED} == {True, False}


def test_no_record_is_left_of_a_removed_rule():
    there = {(str(origin.file.relative_to(ROOT)), origin.name) for origin in ORIGINS}
    assert {(file, name) for file, rules in KEPT.items() for name in rules} == there


def test_nearly_every_mutant_is_seen_and_each_survivor_has_its_reason():
    rules = [known(origin) for origin in ORIGINS]
    count, survivors = sum(rule["mutants"] for rule in rules), [one for rule in rules for one in rule["survivors"].items()]
    assert (count - len(survivors)) / count >= LEAST_SEEN
    assert [change for change, reason in survivors if not reason] == [], (
        "write a test that detects it, or the reason why none is needed"
    )


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
