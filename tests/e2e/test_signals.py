"""What a preview reports about rules, dashboards and cost, against a running datacenter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import alerts
from components.fleet.series import HostShape, Series, of_host
from gpu_fleet import signals
from gpu_fleet.signals import catalogue
from gpu_fleet.signals.rules import read_rules, with_records
from gpu_fleet.stackfile.counters import counters
from lab.dev import query
from tests.e2e.conftest import Datacenter
from tests.host.test_series import OTHER_HARDWARE, within_a_tenth
from tests.waiting import eventually

HOST = 'instance="dev-gpu-host"'
WRONG = """\
groups:
  - name: mine
    interval: 1m
    rules:
      - alert: Mine
        expr: gpu:temprature:celsius > 90
        labels: {severity: warning}
        annotations: {summary: "{{ $labels.instance }}", runbook: https://wiki.example.com/mine}
"""


@pytest.fixture
def wrong_rule(datacenter: Datacenter) -> Iterator[Path]:
    file = datacenter.directory / "alerts/rules/mine.yaml"
    file.write_text(WRONG)
    yield file
    file.unlink()


def test_a_wrong_rule_stops_the_preview_with_every_error_before_the_first_resource(
    datacenter: Datacenter, wrong_rule: Path
) -> None:
    output = datacenter.pulumi("preview", ok=False)
    assert "2 errors in rules and dashboards; nothing was changed." in output, output
    assert "alerts/rules/mine.yaml, alert Mine (severity warning): has no action" in output, output
    assert "did you mean gpu:temperature:celsius?" in output, output
    assert "Traceback" not in output, output
    assert "gpu-fleet:host:Host" not in output, "a resource was looked at"


def test_a_preview_shows_the_cost_and_mimir_has_as_many_series(datacenter: Datacenter, preview: str) -> None:
    assert re.search(r"Series in Mimir, estimated: up to [\d,]+ sent by 1 host, and [\d,]+ recorded from them", preview), preview
    assert re.search(r"1 host with 8 GPUs: [\d,]+ with nvidia_gpu_exporter", preview), preview

    def number(promql: str) -> int:
        found = datacenter.metrics(promql)
        return int(found[0]["value"][1]) if found else 0

    def different(metric: str, label: str) -> int:
        return number(f"count(count by ({label}) ({metric}{{{HOST}}}))")

    def estimated() -> Series:
        """Again at each look: the hosts of other tests bring this machine mounts and network devices, and take them away."""
        shape = replace(
            HostShape(gpus=8, cpus=different("node_cpu_seconds_total", "cpu")),
            cores=0,
            network_devices=different("node_network_up", "device"),
            disks=different("node_disk_info", "device"),
            filesystems=different("node_filesystem_readonly", "mountpoint"),
            infiniband_ports=0,
            units=0,
        )
        return of_host("nvidia_gpu_exporter", shape, counters("standard"))

    sent = f'count({{{HOST}, job=~"alloy|gpu-exporter|node-exporter|textfile", __name__!~"node_({OTHER_HARDWARE})_.*"}})'
    recorded = f'count({{{HOST}, __name__=~"(gpu|instance|inventory|host):.*", __name__!~".*xid.*"}})'
    for what, promql in (("sent", sent), ("recorded", recorded)):
        both = lambda what=what, promql=promql: (getattr(estimated(), what), number(promql))  # noqa: E731
        eventually(f"as many series {what} as estimated", lambda both=both: within_a_tenth(*both()), shown=both)


def test_every_metric_in_mimir_is_known_to_the_check_of_rules_and_panels(datacenter: Datacenter) -> None:
    rules, _ = read_rules(signals.rule_files())
    known = with_records(catalogue.read(), rules, dict.fromkeys(("inventory:host:expected", "inventory:gpus_expected:count")))
    answer = query.get(f"{datacenter.endpoints['MIMIR_URL']}/prometheus/api/v1/label/__name__/values")
    assert set(answer["data"]) - set(known.metrics) == set()


@pytest.mark.parametrize(("server", "backend"), [("MIMIR_URL", "mimir"), ("LOKI_URL", "loki")])
def test_no_rule_fails_in_its_ruler(datacenter: Datacenter, server: str, backend: alerts.Backend) -> None:
    def evaluated() -> list[dict[str, str]]:
        groups = query.get(f"{datacenter.endpoints[server]}/prometheus/api/v1/rules")["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]

    def failing() -> dict[str, str]:
        return {rule["name"]: rule["lastError"] or rule["health"] for rule in evaluated() if rule["health"] != "ok"}

    count = sum(len(group.rules) for group in alerts.rule_groups(backend))
    eventually("every rule in the ruler", lambda: len(evaluated()) >= count, shown=lambda: len(evaluated()))
    eventually("an evaluation of every rule", lambda: not failing(), shown=failing)
