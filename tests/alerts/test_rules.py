"""The rule files: valid for their rulers, within Mimir's defaults, current, tested by promtool; each alert says what to do."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

import alerts
from alerts.generate import generated_files, generated_groups
from alerts.links import DRAIN
from alerts.model import MOST_GROUPS, MOST_RULES_PER_GROUP
from gpu_fleet import toolchain

ALERTS = Path(alerts.__file__).parent
RULE_TESTS = sorted((ALERTS / "tests").glob("*.test.yaml"))
GROUPS = [(backend, group) for backend in ("mimir", "loki") for group in alerts.rule_groups(backend)]
ALERT_RULES = [(backend, rule) for backend, group in GROUPS for rule in group.rules if "alert" in rule]

UNITS = {"s": " second", "m": " minute", "h": " hour"}


@pytest.fixture(scope="module")
def generated():
    return generated_files()


def promtool(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([toolchain.find("promtool"), *arguments], capture_output=True, text=True, check=False)


def by_name(backend, rule):
    return f"{backend}-{rule['alert']}-{rule['labels'].get('xid', rule['labels']['severity'])}"


@pytest.mark.parametrize("file", alerts.rule_files("mimir"), ids=lambda file: file.stem)
def test_promtool_finds_nothing_to_complain_about(file):
    checked = promtool("check", "rules", "--lint-fatal", file)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("file", RULE_TESTS, ids=lambda file: file.name.removesuffix(".test.yaml"))
def test_promtool_s_unit_tests_pass(file):
    tested = promtool("test", "rules", file)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_every_metric_alert_fires_in_a_test_and_is_silent_in_one():
    fires, silent = set(), set()
    for file in RULE_TESTS:
        for case in yaml.load(file.read_text(), yaml.CSafeLoader)["tests"]:
            for check in case.get("alert_rule_test", ()):
                (fires if check["exp_alerts"] else silent).add(check["alertname"])
    names = {rule["alert"] for backend, rule in ALERT_RULES if backend == "mimir"}
    assert names - fires == set(), "these alerts fire in no test"
    assert names - silent == set(), "these alerts are silent in no test"


@pytest.mark.parametrize("path", generated_groups(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_a_generated_file_is_current(path, generated):
    assert path.read_text() == generated[path], "run `python -m alerts.generate` and review the diff"


def test_group_names_are_unique_in_each_ruler():
    names = [(backend, group.name) for backend, group in GROUPS]
    assert len(set(names)) == len(names)


def test_the_groups_fit_into_mimir_s_default_limits():
    for backend in ("mimir", "loki"):
        groups = alerts.rule_groups(backend)
        assert len(groups) <= MOST_GROUPS
        assert {group.name: len(group.rules) for group in groups if len(group.rules) > MOST_RULES_PER_GROUP} == {}


def test_a_group_is_yaml_that_reads_back_as_itself():
    for _, group in GROUPS:
        assert yaml.safe_load(group.yaml) == group.as_dict


def test_an_alert_says_what_where_and_what_to_do():
    for backend, rule in ALERT_RULES:
        labels, annotations, name = rule["labels"], rule["annotations"], by_name(backend, rule)
        assert labels["severity"] in ("critical", "warning", "info"), name
        assert labels["scope"] in ("gpu", "fabric", "host", "exporter", "pipeline", "cluster", "capacity", "test"), name
        assert set(annotations) - DRAIN.keys() == {"summary", "description", "action", "runbook"}, name
        assert all(annotations.values()), name
        if labels["scope"] not in ("cluster",) and rule["alert"] not in ("DriverVersionSkew", "RuleEvaluationFailing"):
            assert "$labels.instance" in annotations["summary"], f"{name}: the first question on call is: which host?"


def test_a_summary_gives_the_duration_of_its_rule():
    said = [
        (rule["alert"], found[1], rule["for"])
        for _, rule in ALERT_RULES
        for found in re.finditer(r"for (\d+ (?:second|minute|hour))s?", rule["annotations"]["summary"])
    ]
    assert said and not [one for one in said if one[1] != re.sub("[smh]", lambda unit: UNITS[unit[0]], one[2])]


def test_no_label_of_an_alert_is_made_of_its_value():
    made = [by_name(*each) for each in ALERT_RULES if any("$value" in str(value) for value in each[1]["labels"].values())]
    assert made == [], "it would be a new alert each time"


def test_an_alert_has_its_runbook_and_the_section_it_points_to():
    for backend, rule in ALERT_RULES:
        path, _, section = rule["annotations"]["runbook"].partition("#")
        assert path == f"alerts/runbooks/{rule['alert']}.md", by_name(backend, rule)
        text = (ALERTS.parent / path).read_text()
        assert not section or f"## {section}\n" in text, by_name(backend, rule)


@pytest.mark.parametrize("name", sorted({rule["alert"] for _, rule in ALERT_RULES} | {"RecordingRulesSilent"}))
def test_a_runbook_has_the_four_sections_of_every_runbook_and_its_diagnosis_begins_with_commands(name):
    text = (ALERTS / "runbooks" / f"{name}.md").read_text()
    assert text.startswith(f"# {name}\n")
    sections = dict(re.findall(r"(?ms)^## ([^\n]*)\n(.*?)(?=^## |\Z)", text))
    assert list(sections) == ["Meaning", "Impact", "Diagnosis", "Mitigation"]
    assert all(section.strip() for section in sections.values())
    assert sections["Diagnosis"].startswith("```sh\n"), "on call at night, commands come before prose"


def test_a_runbook_that_drains_a_host_for_a_reboot_says_how_that_pages_nobody():
    texts = {file.stem: file.read_text().partition("## Mitigation")[2] for file in (ALERTS / "runbooks").iterdir()}
    restarts = {
        name: text for name, text in texts.items() if "scontrol update" in text and re.search("reboot|reset", text.lower())
    }
    assert len(restarts) >= 20
    assert [name for name, text in restarts.items() if "gpu-fleet-maintenance start" not in text] == []


def test_every_runbook_is_the_runbook_of_an_alert():
    names = {rule["alert"] for _, rule in ALERT_RULES} | {"RecordingRulesSilent"}
    assert {file.stem for file in (ALERTS / "runbooks").iterdir()} == names


def test_a_copy_in_loki_has_a_label_of_its_own_and_pages_at_once():
    of_loki = [rule for backend, rule in ALERT_RULES if backend == "loki" and rule["labels"]["scope"] != "test"]
    assert {rule["alert"] for rule in of_loki} <= {rule["alert"] for backend, rule in ALERT_RULES if backend == "mimir"}
    assert [rule["alert"] for rule in of_loki if rule["labels"].get("source") != "log" or "for" in rule] == [], (
        "two rulers that resolve the same alert at different times make it flap"
    )
