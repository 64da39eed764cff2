"""Tapes that are generated, and other rule sets, without replaying any."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from lab.scorecard import rules, tape, vary
from lab.scorecard.score import RULE_SET, Post, episodes

TAPES = tape.read()


def test_a_third_of_all_tapes_is_generated_and_always_the_same() -> None:
    found = vary.varied(TAPES)
    assert found == vary.varied(TAPES) and found != vary.varied(TAPES, seed=29)
    assert len(found) == len(TAPES) // 2 and len({each.name for each in found}) == len(found)


def test_a_generated_tape_expects_what_its_source_does_of_the_gpu_that_its_lines_name() -> None:
    sources = {each.name: each for each in TAPES}
    for each in vary.varied(TAPES):
        source = sources[each.name.rpartition("-varied-")[0]]
        assert vary.is_variable(source) and [step["at"] for step in each.steps] == [step["at"] for step in source.steps]
        assert (each.expected.severity, each.expected.actions) == (source.expected.severity, source.expected.actions)
        named = tape._only_gpu(each.steps)
        if isinstance(each.expected.gpu, int) and named is not None:
            assert named == each.expected.gpu, each.name


def test_generated_tapes_vary_headers_addresses_columns_and_noise() -> None:
    steps = [step for each in vary.varied(TAPES) for step in each.steps if "kernel" in step]
    text = "\n".join(line for step in steps for line in step["kernel"])
    assert {step["form"] for step in steps} == set(tape.FORMS)
    assert "(PCI:0000{" in text and "{PCI" in text and "NVRM: Xid ({pci" in text and "entered forwarding state" in text


def test_rule_files_and_prometheusrule_objects_are_read_and_their_alerts_marked(tmp_path: Path) -> None:
    group = {"name": "gpu", "interval": "1m", "rules": [{"alert": "A", "expr": "up == 0", "labels": {"severity": "critical"}}]}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"groups": [group]}))
    (tmp_path / "b.yml").write_text(yaml.safe_dump({"kind": "PrometheusRule", "spec": {"groups": [group]}}))
    found = rules.read(tmp_path)
    assert [one["name"] for one in found] == ["a-0-gpu", "b-0-gpu"]
    assert found[0]["rules"] == [{**group["rules"][0], "labels": {"severity": "critical", RULE_SET: tmp_path.name}}]


@pytest.mark.parametrize("text", ["{{ if .Values.rules }}", "groups: []", "a: 1"])
def test_a_directory_without_rules_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(rules.BadRules, match="RULES: "):
        rules.read(tmp_path)


def test_notifications_of_two_rule_sets_are_scored_apart() -> None:
    labels = {"alertname": "A", "instance": "h", "severity": "critical"}
    ours = {"status": "firing", "labels": labels}
    theirs = {"status": "firing", "labels": {**labels, RULE_SET: "x"}}
    posts = [Post(10, "g", (ours,)), Post(20, "o", (theirs,))]
    assert [one.start_s for one in episodes(posts, "h", 0)] == [10]
    assert [one.start_s for one in episodes(posts, "h", 0, "x")] == [20]
