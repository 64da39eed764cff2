"""PrometheusRule objects: the same rules as in the files, as the Kubernetes API and the Prometheus Operator take them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

import alerts
from alerts.links import Links
from alerts.prometheus_rule import prometheus_rules
from gpu_fleet import toolchain

# The most that the Prometheus Operator puts into one ConfigMap of rules (its maxConfigMapDataSize).
LARGEST_BYTES = 512 * 1024
OBJECTS = prometheus_rules(
    namespace="gpu-fleet", labels={"release": "prometheus"}, links=Links(runbooks="https://runbooks.example.com/")
)


def test_every_metric_rule_is_in_one_object():
    given = [rule for group in alerts.rule_groups("mimir") for rule in group.rules]
    made = [rule for one in OBJECTS for group in one["spec"]["groups"] for rule in group["rules"]]
    assert len(made) == len(given)
    assert [rule["expr"] for rule in made] == [rule["expr"] for rule in given]


@pytest.mark.parametrize("made", OBJECTS, ids=lambda made: made["metadata"]["name"])
def test_an_object_is_one_that_kubernetes_and_the_operator_take(made, tmp_path):
    assert (made["apiVersion"], made["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", made["metadata"]["name"])
    assert made["metadata"]["namespace"] == "gpu-fleet"
    assert made["metadata"]["labels"] == {"release": "prometheus"}, "without it the operator's Prometheus does not see the rules"
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.dump(made["spec"], Dumper=yaml.CSafeDumper))
    assert file.stat().st_size < LARGEST_BYTES
    checked = subprocess.run([toolchain.find("promtool"), "check", "rules", file], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_an_object_without_labels_says_nothing_of_labels():
    for made in prometheus_rules(namespace="gpu-fleet", labels={}):
        assert "labels" not in made["metadata"], "the API server drops an empty mapping, and every run would add it again"


def test_names_are_unique():
    names = [made["metadata"]["name"] for made in OBJECTS]
    assert len(set(names)) == len(names)


def test_every_alert_links_a_runbook_that_exists():
    checkout = Path(alerts.__file__).parents[1]
    for made in OBJECTS:
        for rule in (rule for group in made["spec"]["groups"] for rule in group["rules"] if "alert" in rule):
            url = rule["annotations"]["runbook_url"]
            assert url.startswith("https://runbooks.example.com/alerts/runbooks/"), url
            assert (checkout / url.removeprefix("https://runbooks.example.com/").partition("#")[0]).is_file()
