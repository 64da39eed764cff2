"""The pages about alerts say what is so: what is watched, examples that a preview takes, queries that Mimir understands."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import alerts
from components.fleet.series import summary
from gpu_fleet import signals
from gpu_fleet.signals import catalogue, promql
from gpu_fleet.signals.rules import read_rules, with_records
from gpu_fleet.stackfile.counters import counters

DOCS = Path(__file__).parents[2] / "docs"
RULES = [rule for backend in ("mimir", "loki", "grafana") for group in alerts.rule_groups(backend) for rule in group.rules]
QUERIES = [
    pytest.param(query, id=f"{page.stem}-{number}")
    for page in sorted(DOCS.glob("*.md"))
    for number, query in enumerate(re.findall(r"(?ms)^```promql\n(.*?)^```$", page.read_text()))
]


def rows() -> list[tuple[list[str], str]]:
    """Alerts and severity of each row of the table of what is watched."""
    table = re.findall(r"(?m)^\| [^|]+ \| ([A-Z][^|]+) \| ([^|]+) \|$", (DOCS / "alert-coverage.md").read_text())
    return [(names.split(", "), severity) for names, severity in table]


def test_every_alert_is_in_the_table_of_what_is_watched_once():
    listed = [name for names, _ in rows() for name in names]
    assert sorted(listed) == sorted({rule["alert"] for rule in RULES if "alert" in rule})


def test_the_table_names_every_severity_that_its_alerts_have():
    for names, said in rows():
        has = {rule["labels"]["severity"] for rule in RULES if rule.get("alert") in names}
        assert has == set(re.findall(r"critical|warning|info", said)), names


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_of_a_page_names_what_there_is(query):
    rules, _ = read_rules(signals.rule_files())
    known = with_records(catalogue.read(), rules, {})
    assert promql.read(query, known).findings == ()


def test_there_are_queries_for_a_scheduler():
    assert QUERIES, "else the test above compares nothing"


def test_the_cost_on_the_page_is_what_a_preview_says():
    hosts = [SimpleNamespace(exporter="auto", vendor="auto", gpus=8, lost=False, connection="ssh")] * 16
    text, _ = summary(hosts, counters("standard"), "standard")
    assert text in (DOCS / "cost.md").read_text()
