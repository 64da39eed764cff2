"""The main workflow, as a user runs it: `make dev`, look, break, repair, remove; what a preview reports about rules, dashboards
and cost. Real engine, agent, Mimir and Loki."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import alerts
from alerts.inventory import COUNTERS, GPUS
from alerts.inventory import HOST as KNOWN_HOST
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


def test_mimir_has_the_utilization_of_8_gpus_with_the_four_labels(datacenter: Datacenter) -> None:
    recorded = lambda: query.labelled_utilization(datacenter.endpoints["MIMIR_URL"])  # noqa: E731
    eventually("8 GPUs", lambda: len(recorded()) == 8, shown=recorded)
    for each in recorded():
        assert each["metric"]["datacenter"] == "dev"
        assert each["metric"]["cluster"] == "local"
        assert each["metric"]["instance"] == "dev-gpu-host"
        assert each["metric"]["exporter_mode"] == "nvidia_gpu_exporter"
        assert 0 <= float(each["value"][1]) <= 1, "the vocabulary speaks in ratios"


def test_every_series_of_the_host_carries_the_four_labels(datacenter: Datacenter) -> None:
    from_host = 'job=~"alloy|gpu-exporter|node-exporter|textfile"'
    for label in query.LABELS:
        assert datacenter.metrics(f'count by (__name__) ({{{from_host},{label}=""}})') == []


def test_node_exporter_and_the_agent_itself_are_scraped(datacenter: Datacenter) -> None:
    for series in ("node_uname_info", "alloy_build_info"):  # each at its own time
        eventually(series, lambda series=series: datacenter.metrics(f'{series}{{instance="dev-gpu-host"}}'))


def test_the_ruler_knows_the_hosts_and_gpus_that_the_stack_expects(datacenter: Datacenter) -> None:
    expected = 'inventory:gpus_expected:count{datacenter="dev",cluster="local",instance="dev-gpu-host"}'
    eventually("the inventory is a metric", lambda: datacenter.metrics(expected))
    assert datacenter.metrics(expected)[0]["value"][1] == "8", "only this number shows that a GPU is lost"


def test_an_edited_file_and_a_stopped_exporter_are_seen_by_refresh_and_repaired_by_up(datacenter: Datacenter) -> None:
    config = min((datacenter.host / "etc/gpu-fleet/alloy").glob("*.alloy"))
    original = config.read_text()
    config.write_text(original + "// edited by hand\n")
    stop_program(datacenter, "gpu-fleet-nvidia-gpu-exporter")

    output = datacenter.pulumi("up", "--refresh", "--yes", "--skip-preview", "--diff")
    assert f"file /etc/gpu-fleet/alloy/{config.name}: content differs" in output, output
    assert "nvidia-gpu-exporter" in output, output
    assert config.read_text() == original
    eventually(
        "8 GPUs again",
        lambda: len(datacenter.metrics("nvidia_smi_utilization_gpu_ratio")) == 8,
    )


def test_the_state_holds_no_secret_in_clear(datacenter: Datacenter) -> None:
    kept = datacenter.state.read_text()
    assert "dev-gpu-host" in kept
    for name in ("grafana-password", "passphrase"):
        assert (datacenter.directory / ".dev" / name).read_text() not in kept, name


def stop_program(datacenter: Datacenter, program: str) -> None:
    """As a person does it, with supervisorctl: supervisord does not restart it."""
    subprocess.run(
        [
            datacenter.directory / ".venv/bin/supervisorctl",
            "-c",
            datacenter.host / "etc/gpu-fleet/supervisord.conf",
            "stop",
            program,
        ],
        check=True,
        cwd=datacenter.host / "run/gpu-fleet",  # the socket's path is relative to it
        env={"GPU_FLEET_PREFIX": str(datacenter.host)},
    )


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
    known = with_records(catalogue.read(), rules, dict.fromkeys((KNOWN_HOST, GPUS, COUNTERS)))
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
