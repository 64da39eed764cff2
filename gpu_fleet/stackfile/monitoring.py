"""The section about a small site's monitoring server: one host of the stack with Mimir, Loki and Grafana behind one TLS port."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from gpu_fleet.host.parts.launch import GPU_ROLES, SERVER_ROLES
from gpu_fleet.stackfile.hosts import HostEntry
from gpu_fleet.stackfile.hostspec import HostSpec
from gpu_fleet.stackfile.values import BaseUrl, Days, LocalPath, Port, Section

# Users of the monitoring server's login, where the sections of the stack file do not name others. A GPU host has the first two
# passwords, so its logins can push and nothing else; `rules` can read and change everything.
METRICS_USER, LOGS_USER, RULES_USER = "metrics", "logs", "rules"


class Retention(Section):
    """How long the monitoring server keeps what it stores."""

    metrics: Days = "90d"
    """Mimir: older samples are deleted."""
    logs: Days = "30d"
    """Loki: older log lines are deleted."""


class Monitoring(Section):
    """The monitoring server, a host with `role: monitoring` or `both`. Hosts, rulers and Grafana use it by default."""

    certificate_file: LocalPath = Field(examples=["inventory/monitoring.pem"])
    """TLS certificate of the server (PEM, with the chain). Its key is the secret gpu-fleet:monitoringKey."""
    ca_file: LocalPath | None = Field(default=None, examples=["inventory/monitoring.pem"])
    """Authorities (PEM) that sign it, or a self-signed certificate itself; `tls.ca` of the sections that are left out.
    Default: those that each client's system trusts."""
    url: BaseUrl | None = None
    """How hosts, browsers and this machine reach it. Default: https:// and the address of the host, with `port`."""
    port: Port = 443
    """TLS port that it listens on."""
    retention: Retention = Retention()
    """How long metrics and logs are kept."""
    grafana: bool = True
    """Whether Grafana runs there too."""


def is_server(host: HostSpec | HostEntry) -> bool:
    return host.role in SERVER_ROLES


def has_gpus(host: HostSpec | HostEntry) -> bool:
    return host.role in GPU_ROLES


def monitoring_hosts(hosts: Mapping[str, HostSpec]) -> list[HostSpec]:
    return [host for host in hosts.values() if is_server(host) and not host.lost]


def server_url(section: Monitoring, host: HostSpec) -> str:
    """Without a slash at the end. Empty: it cannot be derived, because the host is the machine that runs Pulumi."""
    if section.url:
        return section.url
    if host.connection != "ssh":
        return ""
    address = f"[{host.address}]" if ":" in host.address else host.address
    return f"https://{address}" + (f":{section.port}" if section.port != 443 else "")
