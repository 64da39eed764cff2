"""One host as monitoring server and GPU host at once (`role: both`): nothing to do in a second run, and either half can be given
up as docs/monitoring-server.md says, without harm to the other."""

from __future__ import annotations

import json
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_fleet.host.parts.monitoring import DATA
from lab.hosts import Host, Site
from tests.hosts.outside import asked, make_certificate
from tests.hosts.stack import CLUSTER, DATACENTER, Backend, Stack, left_as_found
from tests.hosts.test_monitoring_server import RULES, SECRETS

SERVER = {f"gpu-fleet-{name}.service" for name in ("mimir", "loki", "grafana", "monitoring-proxy")}
GPU = {"gpu-fleet-nvidia-gpu-exporter.service"}
EVERY_HOST = {"gpu-fleet-node-exporter.service", "gpu-fleet-alloy.service"}


@pytest.fixture(scope="module")
def host(site: Site) -> Host:
    return site.hosts["metal-b"]


@pytest.fixture(scope="module")
def stack(site: Site, host: Host, artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    key, ca = make_certificate(host.address, tmp_path_factory.mktemp("certificate"))
    config = {
        "datacenter": DATACENTER,
        "cluster": CLUSTER,
        "ssh": {"user": "ops", "privateKeyFile": str(site.key_file), "knownHostsFile": str(site.known_hosts_file)},
        "hosts": {host.name: {"address": host.address, "role": "both", "gpus": 8, "exporter": "nvidia_gpu_exporter"}},
        "artifacts": {"source": "controller", "directory": str(artifacts)},
        "monitoring": {"certificateFile": str(ca), "caFile": str(ca)},
    }
    stack = Stack(tmp_path_factory.mktemp("both") / "checkout", "both", config, {**SECRETS, "monitoringKey": key.read_text()})
    with left_as_found(host):
        try:
            stack.create().up()
            yield stack
        finally:
            stack.clear()
            host.ssh(f"rm -rf {DATA}")


def running(host: Host) -> dict[str, str]:
    """The main process of each service that runs all the time."""
    listed = host.ssh("systemctl list-units --plain --no-legend --state=running 'gpu-fleet-*.service'").stdout
    units = SERVER | GPU | EVERY_HOST
    return {
        unit: host.ssh(f"systemctl show --property MainPID --value {unit}").stdout.strip()
        for unit in (line.split()[0] for line in listed.splitlines())
        if unit in units
    }


def query(stack: Stack, host: Host, promql: str) -> list[dict[str, Any]]:
    url = f"https://{host.address}/prometheus/api/v1/query?{urllib.parse.urlencode({'query': promql})}"
    status, body = asked(url, Path(stack.config["monitoring"]["caFile"]), RULES)
    return json.loads(body)["data"]["result"] if status == "200" else []


def change(stack: Stack, host: Host, **entry: object) -> None:
    stack.config["hosts"][host.name] = {"address": host.address, **entry}
    stack.write()
    stack.up()


def test_a_second_run_changes_nothing(stack: Stack, host: Host) -> None:
    before = running(host)
    assert before.keys() == SERVER | GPU | EVERY_HOST
    stack.up_unchanged()
    assert running(host) == before, "no service was restarted"


def test_a_setting_of_its_gpu_half_restarts_nothing_of_the_server(stack: Stack, host: Host) -> None:
    before = running(host)
    change(stack, host, role="both", gpus=8, exporter="nvidia_gpu_exporter", ports={"gpuExporter": 9401})
    now = running(host)
    assert {unit for unit in before if now[unit] != before[unit]} >= GPU
    assert {unit for unit in before if now[unit] != before[unit]} & SERVER == set(), "Mimir would replay for a minute"


def test_without_its_gpu_half_the_server_goes_on(stack: Stack, host: Host, eventually: Callable[..., None]) -> None:
    gpus = f'count(nvidia_smi_utilization_gpu_ratio{{instance="{host.name}"}})'
    eventually("its own GPUs in its own Mimir", lambda: [each["value"][1] for each in query(stack, host, gpus)] == ["8"])
    change(stack, host, role="monitoring")
    assert running(host).keys() == SERVER | EVERY_HOST
    left = "ls /opt/gpu-fleet/bin /etc/systemd/system | grep nvidia; getent passwd gpu-fleet-nvidia-gpu-exporter"
    assert host.ssh(left, check=False).stdout == ""
    new = f'timestamp(node_boot_time_seconds{{instance="{host.name}"}}) > {time.time()}'
    eventually("the server itself is still watched", lambda: query(stack, host, new))
    past = f'count_over_time(nvidia_smi_utilization_gpu_ratio{{instance="{host.name}"}}[1h])'
    assert len(query(stack, host, past)) == 8, "what it knows of its GPUs is kept"
    stack.up_unchanged()


def test_without_the_server_its_gpus_are_watched_by_other_stores(stack: Stack, host: Host, backend: Backend) -> None:
    stack.destroy()
    assert not running(host)
    del stack.config["monitoring"]
    for key in (*SECRETS, "monitoringKey"):
        stack.pulumi("config", "rm", f"gpu-fleet:{key}")
    stack.config |= {"metrics": {"url": backend.metrics}, "logs": {"url": backend.logs}}
    change(stack, host, role="gpu", gpus=8, exporter="nvidia_gpu_exporter")
    assert running(host).keys() == GPU | EVERY_HOST
    assert set(host.ssh(f"ls {DATA}").stdout.split()) == {"mimir", "loki", "grafana"}, "data is kept"
    stack.up_unchanged()
