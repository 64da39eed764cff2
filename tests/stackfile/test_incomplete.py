"""Half a configuration works and disappoints later: it is warned about, with the lines to add."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_fleet.stackfile.config import StackConfig
from tests.stackfile.stacks import write_known_hosts

HOSTS = {"gpu-1": {"address": "10.0.0.1"}}
LABELS = {"datacenter": "us-west", "cluster": "training"}
METRICS = {"metrics": {"url": "https://mimir.example.com/base/api/v1/push", "tenant": "us-west", "username": "writer"}}
SERVER = {"url": "https://mimir.example.com/base", "tenant": "us-west", "username": "writer"}


def load(base: Path, raw: dict[str, Any], *secrets: str) -> StackConfig:
    return StackConfig.load(raw, base, {"metricsPassword", *secrets})


@pytest.mark.parametrize(
    ("raw", "secrets", "what"),
    [
        ({"ssh": {"user": "ops", "knownHostsFile": "known_hosts"}, "hosts": HOSTS}, (), "never reports raises no alert"),
        ({"kubernetes": {"context": "c"}}, (), "never reports raises no alert"),
        (
            {"grafana": {"url": "https://grafana.example.com"}},
            ("grafanaAuth",),
            "nothing records the series that the dashboards show",
        ),
    ],
)
def test_what_lacks_a_ruler_is_warned_about_with_lines_that_fix_it(
    base: Path, raw: dict[str, Any], secrets: tuple[str, ...], what: str
) -> None:
    write_known_hosts(base)
    raw = {**LABELS, **METRICS, **raw}
    [warning] = load(base, raw, *secrets).warnings
    assert what in warning
    lines = yaml.safe_load(warning.partition("\n")[2])
    assert lines == {"gpu-fleet:rulers": {"mimir": SERVER}}
    complete = {**raw, "rulers": lines["gpu-fleet:rulers"]}
    assert load(base, complete, *secrets, "rulersPassword").warnings == (), "the lines are right as they are"


def test_mimir_is_added_to_rulers_that_have_loki_alone(base: Path) -> None:
    raw = {**LABELS, **METRICS, "kubernetes": {"context": "c"}, "rulers": {"loki": {"url": "https://loki.example.com"}}}
    [warning] = load(base, raw).warnings
    assert yaml.safe_load(warning.partition("\n")[2]) == {"gpu-fleet:rulers": {"mimir": SERVER}}


def test_a_stack_that_only_owns_rules_is_complete(base: Path) -> None:
    raw = {"rulers": {"mimir": {"url": "https://mimir.example.com"}}, "alerts": {}}
    assert StackConfig.load(raw, base).warnings == ()


@pytest.mark.parametrize("url", ["https://prometheus.example.com/api/v1/write", "https://thanos.example.com/api/v1/receive"])
def test_a_store_without_a_ruler_api_is_warned_about_with_the_command_that_writes_its_rules(base: Path, url: str) -> None:
    write_known_hosts(base)
    hosts = {"ssh": {"user": "ops", "knownHostsFile": "known_hosts"}, "hosts": HOSTS}
    [warning] = StackConfig.load({**LABELS, "metrics": {"url": url}, **hosts}, base, set()).warnings
    assert "`make rules FOR=prometheus STACK=s`" in warning


@pytest.mark.parametrize(
    ("push", "query"),
    [
        ("https://m.example.com/api/v1/push", "https://m.example.com/prometheus"),
        ("https://m.grafana.net/api/prom/push", "https://m.grafana.net/api/prom"),
        ("https://p.example.com/api/v1/write", "https://p.example.com"),
        ("https://v.example.com/insert/0/prometheus/api/v1/write", None),
        ("https://t.example.com/api/v1/receive", None),
    ],
)
def test_where_a_store_answers_queries_follows_from_its_push_url_where_it_can(base: Path, push: str, query: str | None) -> None:
    write_known_hosts(base)
    hosts = {"ssh": {"user": "ops", "knownHostsFile": "known_hosts"}, "hosts": HOSTS}
    metrics = StackConfig.load({**LABELS, "metrics": {"url": push}, **hosts}, base, set()).metrics
    assert metrics is not None and metrics.queries == query
