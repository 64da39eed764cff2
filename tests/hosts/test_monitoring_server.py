"""One host of the stack as its monitoring server, beside a container without systemd: what people reach, what the logins may do,
backups, and what stays when it is removed."""

from __future__ import annotations

import json
import re
import time
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_fleet.host.parts.monitoring import DATA
from lab import gpu
from lab.hosts import Host, Site
from tests.hosts.outside import asked, make_certificate
from tests.hosts.stack import CLUSTER, DATACENTER, Stack, left_as_found

SECRETS = {
    "metricsPassword": "planted-metrics-secret",
    "logsPassword": "planted-logs-secret",
    "rulersPassword": "planted-rules-secret",
    "grafanaAuth": "admin:planted-grafana-secret",
}
RULES, METRICS = f"rules:{SECRETS['rulersPassword']}", f"metrics:{SECRETS['metricsPassword']}"
KERNEL_LOG = "/var/log/kern.log"


@pytest.fixture(scope="module")
def server(site: Site) -> Host:
    return site.hosts["metal-b"]


@pytest.fixture(scope="module")
def rented(site: Site) -> Host:
    return site.hosts["container"]


@pytest.fixture(scope="module")
def certificate(server: Host, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Key, and certificate that is its own authority."""
    return make_certificate(server.address, tmp_path_factory.mktemp("certificate"))


@pytest.fixture(scope="module")
def stack(
    site: Site,
    server: Host,
    rented: Host,
    artifacts: Path,
    certificate: tuple[Path, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stack]:
    key, ca = certificate
    config = {
        "datacenter": DATACENTER,
        "cluster": CLUSTER,
        "ssh": {"user": "ops", "privateKeyFile": str(site.key_file), "knownHostsFile": str(site.known_hosts_file)},
        "hosts": {
            server.name: {"address": server.address, "role": "monitoring"},
            rented.name: {"address": rented.address, "gpus": 2, "kernelLog": KERNEL_LOG},
        },
        "artifacts": {"source": "controller", "directory": str(artifacts)},
        "monitoring": {"certificateFile": str(ca), "caFile": str(ca)},
    }
    secrets = {**SECRETS, "monitoringKey": key.read_text()}
    stack = Stack(tmp_path_factory.mktemp("monitored") / "checkout", "monitored", config, secrets).create()
    with left_as_found(server, rented):
        rented.ssh(f"touch {KERNEL_LOG} && chmod 644 {KERNEL_LOG}")
        try:
            yield stack
        finally:
            stack.clear()
            rented.ssh(f"rm {KERNEL_LOG}")
            server.ssh(f"rm -rf {DATA} {DATA}.before-* /root/backup.tar.gz")


@pytest.fixture(scope="module")
def printed(stack: Stack) -> str:
    """What its first `up` printed, with its preview."""
    preview, update = stack.previewed_up()
    assert re.search(r"RuleGroup +rulers-mimir-\S+ +create", preview), "nothing has to exist for a preview"
    return preview + update


@pytest.fixture
def query(server: Host, certificate: tuple[Path, Path]) -> Callable[[str], list]:
    def metrics(promql: str) -> list:
        url = f"https://{server.address}/prometheus/api/v1/query?{urllib.parse.urlencode({'query': promql})}"
        status, body = asked(url, certificate[1], RULES)
        return json.loads(body)["data"]["result"] if status == "200" else []

    return metrics


def test_one_up_brings_the_server_and_what_uses_it(
    stack: Stack, printed: str, server: Host, rented: Host, certificate: tuple[Path, Path], query: Callable, eventually: Callable
) -> None:
    for secret in (*SECRETS.values(), "PRIVATE KEY"):
        assert secret not in printed
    gpus = f'count(nvidia_smi_utilization_gpu_ratio{{instance="{rented.name}",exporter_mode="nvidia_gpu_exporter"}})'
    eventually("two GPUs of the container in Mimir", lambda: [each["value"][1] for each in query(gpus)] == ["2"])
    eventually("the server itself is watched", lambda: query(f'node_uname_info{{instance="{server.name}"}}'))
    eventually("the inventory counts both", lambda: len(query("inventory:host:expected")) == 2)

    base, ca = f"https://{server.address}", certificate[1]
    status, body = asked(f"{base}/api/dashboards/uid/gpu-fleet-host", ca, SECRETS["grafanaAuth"])
    assert status == "200" and json.loads(body)["dashboard"]["panels"]
    _, body = asked(f"{base}/api/datasources", ca, SECRETS["grafanaAuth"])
    sources = {each["type"]: each["uid"] for each in json.loads(body)}
    status, body = asked(
        f"{base}/api/datasources/proxy/uid/{sources['prometheus']}/api/v1/query?query=node_uname_info", ca, SECRETS["grafanaAuth"]
    )
    assert status == "200" and json.loads(body)["data"]["result"], "Grafana reaches Mimir beside it"


@pytest.mark.usefixtures("printed")
def test_an_xid_of_a_container_fires_an_alert_in_the_servers_alertmanager(
    server: Host, rented: Host, certificate: tuple[Path, Path], query: Callable, eventually: Callable
) -> None:
    url, ca = f"https://{server.address}", certificate[1]

    def alerts() -> list[dict]:
        status, body = asked(f"{url}/alertmanager/api/v2/alerts", ca, RULES)
        found = json.loads(body) if status == "200" else []
        return [
            each["labels"] for each in found if each["labels"].get("xid") == "79" and each["labels"]["instance"] == rented.name
        ]

    try:
        header = f"{time.strftime('%b %e %H:%M:%S')} {rented.name} kernel:"  # a syslog daemon's
        lines = [f"{header} {line}\n" for line in gpu.inject_xid(rented.gpu_state, code=79, gpu=1)]
        rented.ssh(f"cat >>{KERNEL_LOG}", stdin="".join(lines))
        of_the_code = '{__name__=~"gpu_fleet_xid_.+|gpu:xid_.+|ALERTS",xid="79"}'
        eventually(
            "the alert", alerts, shown=lambda: query(of_the_code) or rented.ssh("tail -n 30 /var/log/gpu-fleet/*alloy*").stdout
        )
    finally:
        rented.repair_gpus()
    of_kernel = urllib.parse.urlencode({"query": '{job="kernel"} |= "Xid"'})

    def kernel_lines() -> list:
        status, body = asked(f"{url}/loki/api/v1/query_range?{of_kernel}", ca, RULES)
        return json.loads(body)["data"]["result"] if status == "200" else []

    eventually("the line in Loki", kernel_lines)


@pytest.mark.usefixtures("printed")
def test_a_rented_hosts_login_can_push_and_nothing_else(server: Host, rented: Host, certificate: tuple[Path, Path]) -> None:
    base, ca = f"https://{server.address}", certificate[1]
    mimir = ("/prometheus/api/v1/query?query=up", "/api/v1/alerts", "/prometheus/config/v1/rules", "/metrics")
    for path in (*mimir, "/loki/api/v1/labels"):
        assert asked(f"{base}{path}", ca, METRICS)[0] == asked(f"{base}{path}", ca)[0] == "401", path
    assert "cortex_build_info" in asked(f"{base}/metrics", ca, RULES)[1], "what `make test-alert` reads"
    assert asked(f"{base}/api/v1/push", ca)[0] == asked(f"{base}/api/v1/push", ca, "metrics:wrong")[0] == "401"
    assert asked(f"{base}/api/v1/push", ca, METRICS)[0] not in ("000", "401", "403"), "Mimir answers"
    for port in (9009, 3100, 3000, 2020):
        assert asked(f"http://{server.address}:{port}/", ca)[0] == "000", "only on loopback"
    assert set(rented.ssh("ls /etc/gpu-fleet/secrets").stdout.split()) == {"metrics-password", "logs-password"}
    readable = rented.ssh("grep -rlE 'PRIVATE KEY|planted-(rules|grafana)' /etc/gpu-fleet /var/lib/gpu-fleet /tmp", check=False)
    assert readable.stdout == "", "a rented host gets neither the server's key nor its passwords"


@pytest.mark.usefixtures("printed")
def test_a_backup_brings_back_what_was_there(stack: Stack, server: Host, query: Callable, eventually: Callable) -> None:
    newest = f'timestamp(node_boot_time_seconds{{instance="{server.name}"}})'
    eventually("the server itself is watched", lambda: query(newest))
    [before] = query(newest)  # not the time of the query: a sample before that may be sent after the data is lost
    server.ssh("/opt/gpu-fleet/bin/gpu-fleet-monitoring backup /root/backup.tar.gz", timeout_s=300)
    assert server.ssh("stat -c %a /root/backup.tar.gz").stdout == "600\n"
    server.ssh(f"systemctl stop gpu-fleet-mimir && rm -rf {DATA}/mimir/* && systemctl start gpu-fleet-mimir")
    past = f'node_boot_time_seconds{{instance="{server.name}"}} @ {before["value"][1]}'
    eventually("Mimir runs again", lambda: query("vector(1)"))
    assert not query(past), "the data is lost"
    server.ssh("/opt/gpu-fleet/bin/gpu-fleet-monitoring restore /root/backup.tar.gz", timeout_s=300)
    eventually("the data is back", lambda: query(past))
    for ready in ("127.0.0.1:9009/ready", "127.0.0.1:3100/ready", "127.0.0.1:3000/api/health"):
        eventually(ready, lambda url=ready: server.ssh(f"curl -sf http://{url}", check=False).stdout)
    stack.up_unchanged()


@pytest.mark.usefixtures("printed")
def test_a_removed_server_leaves_its_data_and_says_so(stack: Stack, server: Host) -> None:
    output = stack.destroy()
    assert f"{server.name}: its data stays on the host; to delete it there: sudo rm -rf {DATA}" in output, output
    assert set(server.ssh(f"ls {DATA}").stdout.split()) == {"mimir", "loki", "grafana"}
    left = "ls -d /etc/gpu-fleet /opt/gpu-fleet /etc/systemd/system/gpu-fleet-*; getent passwd | grep gpu-fleet"
    assert server.ssh(left, check=False).stdout == ""
