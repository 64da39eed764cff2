"""The annotations that a stack adds to every alert: links that lead somewhere, commands only where they help."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

import alerts
from alerts import grafana_rules
from alerts.links import NO_LINKS, GrafanaLinks, Links, with_links
from alerts.model import RuleGroup, rule_file
from gpu_fleet import toolchain

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


def _series(text: str) -> dict[str, str]:
    return {"series": text.replace("{", '{datacenter="d",cluster="c",'), "values": "1x3"}


def _alert(jobs: str, **labels: str) -> dict[str, Mapping[str, str]]:
    place = {"datacenter": "d", "cluster": "c", "instance": "a", **labels, "scope": "gpu", "severity": "warning"}
    return {"exp_labels": place, "exp_annotations": {"summary": place["instance"], "jobs": jobs}}


JOBS_TEST = {
    "interval": "1m",
    "input_series": [
        _series('sick{instance="a",gpu="1",uuid="GPU-1"}'),
        _series('sick{instance="a",pci="0000:4b:00"}'),
        _series('sick{instance="a"}'),
        _series('sick{instance="idle"}'),
        _series('gpu:address:info{instance="a",gpu="0",uuid="GPU-0",pci="0000:4b:00"}'),
        _series('gpu:address:info{instance="a",gpu="1",uuid="GPU-1",pci="0000:5b:00"}'),
        _series('gpu:job:info{instance="a",gpu="0",uuid="GPU-0",job_id="12",user="bob"}'),
        _series('gpu:job:info{instance="a",gpu="1",uuid="GPU-1",job_id="4711",user="alice",account="vision"}'),
        _series('gpu:job:info{instance="b",gpu="1",uuid="GPU-9",job_id="9",user="eve"}'),
    ],
    "alert_rule_test": [
        {
            "eval_time": "2m",
            "alertname": "Sick",
            "exp_alerts": [
                _alert("4711 of alice (vision)", gpu="1", uuid="GPU-1"),
                _alert("12 of bob", pci="0000:4b:00"),
                _alert("12 of bob, 4711 of alice (vision)"),
                _alert("", instance="idle"),
            ],
        }
    ],
}


def test_an_alert_names_the_jobs_of_its_gpu_or_of_its_host(tmp_path: Path) -> None:
    rule = {
        "alert": "Sick",
        "expr": "sick == 1",
        "labels": {"severity": "warning", "scope": "gpu"},
        "annotations": {"summary": "{{ $labels.instance }}"},
    }
    group = with_links(RuleGroup(name="sick", interval="1m", rules=(rule,)), Links(has_jobs=True))
    (tmp_path / "rules.yaml").write_text(rule_file([group]))
    (tmp_path / "test.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": [JOBS_TEST]}))
    command = [toolchain.find("promtool"), "test", "rules", tmp_path / "test.yaml"]
    tested = subprocess.run(command, capture_output=True, text=True, check=False)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def test_jobs_are_named_only_where_they_are_recorded_and_the_ruler_can_query_them() -> None:
    with_jobs = Links(grafana=GRAFANA, has_jobs=True)
    assert not any("jobs" in texts for _, texts in annotated(Links(grafana=GRAFANA)))
    assert any("jobs" in texts for labels, texts in annotated(with_jobs) if labels["alertname"] == "GpuXid")
    assert not any("jobs" in texts for _, texts in annotated(with_jobs, "loki"))
    given = [rule for group in grafana_rules.rule_groups(["mimir"], with_jobs) for rule in group.rules]
    assert not any("jobs" in rule.annotations for rule in given)
