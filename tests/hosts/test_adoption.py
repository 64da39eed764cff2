"""Exporters installed before us: refused with a fix, adopted if the stack file says so, and left running at removal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.hosts import Site
from tests.hosts.placed import ARTIFACTS, PlacedHost
from tests.hosts.stack import left_as_found

# As a distribution's package and an administrator install them: names, units and users of their own, on the upstream ports.
THEIRS = """
set -e
for found in $(sed -n 's/ .*//p' {artifacts}/SHA256SUMS); do
  case $(sed -n "s/^$found  //p" {artifacts}/SHA256SUMS) in
    node_exporter-*) install -m 755 {artifacts}/$found /usr/bin/prometheus-node-exporter ;;
    nvidia_gpu_exporter-*) install -m 755 {artifacts}/$found /usr/local/bin/their_gpu_exporter ;;
  esac
done
unit() {{
  printf '[Service]\\nUser=nobody\\nExecStart=%s\\n[Install]\\nWantedBy=multi-user.target\\n' "$2" >/etc/systemd/system/$1.service
  systemctl enable --quiet --now $1
}}
unit prometheus-node-exporter '/usr/bin/prometheus-node-exporter --web.listen-address=:9100'
mkdir -p /var/lib/prometheus/node-exporter
printf '#!/bin/sh\n' >/usr/local/bin/get_gpu_metrics.sh
echo '* * * * * root /usr/local/bin/get_gpu_metrics.sh' >/etc/cron.d/prometheus_gpu_metrics
echo 'node_gpu_utilization_percent{{gpu="0"}} 97' >/var/lib/prometheus/node-exporter/gpu_metrics.prom
unit their-gpu-exporter '/usr/local/bin/their_gpu_exporter --web.listen-address=127.0.0.1:9835'
for port in 9100 9835; do {answers}; done
"""
# An exporter that was just started does not listen yet.
ANSWERS = "curl --silent --output /dev/null --retry 100 --retry-delay 1 --retry-connrefused http://127.0.0.1:$port/metrics"
GONE = """
systemctl disable --quiet --now prometheus-node-exporter their-gpu-exporter
rm -f /etc/systemd/system/prometheus-node-exporter.service /etc/systemd/system/their-gpu-exporter.service
rm -f /usr/bin/prometheus-node-exporter /usr/local/bin/their_gpu_exporter
rm -rf /usr/local/bin/get_gpu_metrics.sh /etc/cron.d/prometheus_gpu_metrics /var/lib/prometheus
systemctl daemon-reload
"""


@pytest.fixture
def occupied(site: Site, artifacts: Path) -> Iterator[PlacedHost]:
    placed = PlacedHost(site.hosts["metal-b"], artifacts)
    host = placed.host
    with left_as_found(host):
        placed.bring_artifacts()
        host.ssh(THEIRS.format(artifacts=ARTIFACTS, answers=ANSWERS) + f"rm -r {ARTIFACTS}")
        try:
            with left_as_found(host):
                yield placed
                placed.leave()
        finally:
            placed.leave()
            host.ssh(GONE)


def test_existing_exporters_are_refused_adopted_and_left_running(occupied: PlacedHost) -> None:
    host = occupied.host
    refused = occupied.apply()
    assert refused.code == 1
    assert set(refused.errors) == {"node-exporter", "nvidia-gpu-exporter"}, "the other parts came up"
    for part, port in (("node-exporter", 9100), ("nvidia-gpu-exporter", 9835)):
        message = refused.errors[part]
        assert re.match(rf"port {port} is in use by process \d+ \(\w[^)]*\); ", message), message
        assert "adopt: true" in message and "another port" in message

    occupied.settings["GPU_FLEET_ADOPT"] = "yes"
    adopted = occupied.apply()
    assert adopted.errors == {}
    assert adopted.facts["GPU_FLEET_NODE_EXPORTER_REASON"].startswith("adopted: already running on 127.0.0.1:9100")
    assert adopted.facts["GPU_FLEET_EXPORTER_MODE"] == "nvidia_gpu_exporter"
    assert adopted.facts["GPU_FLEET_GPU_EXPORTER_LISTEN"] == "127.0.0.1:9835"
    units = set(host.ssh("systemctl list-unit-files --no-legend 'gpu-fleet-*.service' | cut -d ' ' -f 1").stdout.split())
    assert units == {f"gpu-fleet-{name}.service" for name in ("alloy", "check", "textfile")}
    assert occupied.apply().changes == {}, "what is adopted stays adopted"
    assert occupied.check().drift == []

    assert adopted.facts["GPU_FLEET_OLD_COLLECTOR"] == "found"
    assert "GPU_FLEET_OLD_COLLECTOR_NOTICE" not in adopted.facts, "what reads the adopted node_exporter needs it"
    occupied.settings["GPU_FLEET_REPLACE_OLD_COLLECTOR"] = "yes"
    kept = occupied.apply()
    assert (kept.errors, kept.facts["GPU_FLEET_OLD_COLLECTOR"]) == ({}, "found")
    assert "remove adopt to replace both" in kept.facts["GPU_FLEET_OLD_COLLECTOR_NOTICE"]
    assert "root /usr/local/bin/get_gpu_metrics.sh" in host.ssh("cat /etc/cron.d/prometheus_gpu_metrics").stdout
    assert "node_gpu_" in host.ssh("cat /var/lib/prometheus/node-exporter/gpu_metrics.prom").stdout
    assert occupied.apply().changes == {}

    host.ssh("systemctl stop prometheus-node-exporter")
    assert occupied.check().drift == ["check: http://127.0.0.1:9100/metrics does not respond"]
    host.ssh(f"systemctl start prometheus-node-exporter; port=9100; {ANSWERS}")
    assert occupied.check().drift == []

    assert occupied.remove().errors == {}
    active = host.ssh("systemctl is-active prometheus-node-exporter their-gpu-exporter").stdout.split()
    assert active == ["active", "active"]

    host.ssh("systemctl stop prometheus-node-exporter their-gpu-exporter")
    occupied.settings["GPU_FLEET_ADOPT"] = "no"
    replaced = occupied.apply()
    assert (replaced.errors, replaced.facts["GPU_FLEET_OLD_COLLECTOR"]) == ({}, "replaced")
    assert not re.search(r"(?m)^[^#]", host.ssh("cat /etc/cron.d/prometheus_gpu_metrics").stdout), "cron runs nothing"
    readings = host.ssh("cat /var/lib/prometheus/node-exporter/gpu_metrics.prom").stdout
    assert "node_gpu_" not in readings, "node_exporter would serve the last readings for ever"
    assert "root /usr/local/bin/get_gpu_metrics.sh" in host.ssh("grep -rh get_gpu /var/lib/gpu-fleet/saved").stdout
    assert occupied.apply().changes == {}
    assert occupied.check().drift == []
    assert occupied.remove().errors == {}
    host.ssh("systemctl start prometheus-node-exporter their-gpu-exporter")
