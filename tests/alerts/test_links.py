"""The annotations that a stack adds to every alert: links that lead somewhere, commands only where they help."""

from __future__ import annotations

import pytest

import alerts
from alerts import grafana_rules
from alerts.links import NO_LINKS, GrafanaLinks, Links

GRAFANA = GrafanaLinks(
    url="https://grafana.example.com/",
    incident="incident",
    host="host",
    cluster="cluster",
    logs="loki",
    runbooks={"GpuXid": "/d/runbooks?viewPanel=1"},
)
DRAIN = {"drain_slurm", "drain_kubernetes"}


def annotated(links: Links = NO_LINKS, backend: str = "mimir") -> list[tuple[dict, dict]]:
    """Labels and annotations of every alert."""
    rules = (rule for group in alerts.rule_groups(backend, links) for rule in group.rules if "alert" in rule)
    return [({**rule["labels"], "alertname": rule["alert"]}, rule["annotations"]) for rule in rules]


@pytest.mark.parametrize("backend", ["mimir", "loki"])
def test_only_a_page_about_gpus_or_the_fabric_of_one_host_has_the_commands_that_drain_it(backend: str) -> None:
    for labels, texts in annotated(backend=backend):
        is_about_gpus = labels["severity"] == "critical" and labels["scope"] in ("gpu", "fabric")
        has_host = "$labels.instance" in texts["summary"]
        assert (set(texts) >= DRAIN) == (is_about_gpus and has_host), labels
    assert any(set(texts) >= DRAIN for _, texts in annotated(backend=backend))


def test_without_grafana_and_runbooks_no_link_is_made_up() -> None:
    assert not any(name.endswith("_url") for _, texts in annotated() for name in texts)


def test_an_alert_links_its_host_s_incident_its_host_or_its_cluster() -> None:
    for labels, texts in annotated(Links(grafana=GRAFANA)):
        has_host = "$labels.instance" in " ".join(texts.values())
        of_host = "incident" if labels["scope"] in ("gpu", "fabric") else "host"
        board = of_host if has_host else "cluster"
        assert texts["dashboard_url"].startswith(f"https://grafana.example.com/d/{board}?orgId=1"), labels
        assert ("logs_url" in texts) == has_host, labels


def test_a_runbook_elsewhere_takes_precedence_over_that_in_grafana() -> None:
    def of(links: Links) -> str:
        return next(texts["runbook_url"] for labels, texts in annotated(links) if labels["alertname"] == "GpuXid")

    assert of(Links(grafana=GRAFANA)) == "https://grafana.example.com/d/runbooks?viewPanel=1"
    assert of(Links(grafana=GRAFANA, runbooks="https://git.example.com/")).startswith(
        "https://git.example.com/alerts/runbooks/GpuXid"
    )


def test_grafana_s_own_rules_have_the_same_annotations() -> None:
    given = [rule for group in grafana_rules.rule_groups(["mimir"], Links(grafana=GRAFANA)) for rule in group.rules]
    lost = next(rule for rule in given if rule.title == "GpuXid 79")
    assert {"runbook_url", "dashboard_url", "logs_url", *DRAIN} <= set(lost.annotations)
    assert "$value" not in "".join(lost.annotations.values())
