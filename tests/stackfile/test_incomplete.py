"""Half a configuration works and disappoints later: it is warned about, with the lines to add."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from stackfile.config import StackConfig
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
        ({"grafana": {"url": "https://grafana.example.com"}}, ("grafanaAuth",), "no data source for metrics"),
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
