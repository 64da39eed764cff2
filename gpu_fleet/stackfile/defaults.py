"""Sections that a stack file may leave out because the stack has a monitoring server: everything else in the stack uses it."""

from __future__ import annotations

from collections.abc import Mapping, Set

from gpu_fleet.stackfile.alerts import Alerts
from gpu_fleet.stackfile.hostspec import HostSpec
from gpu_fleet.stackfile.monitoring import LOGS_USER, METRICS_USER, RULES_USER, monitoring_hosts, server_url
from gpu_fleet.stackfile.sections import Grafana, Logs, Metrics, Ruler, Rulers, StackFile, Tls
from gpu_fleet.stackfile.values import Section


def completed(file: StackFile, hosts: Mapping[str, HostSpec], broken: Set[str]) -> StackFile:
    """The stack file with the sections that are absent because the stack has a monitoring server; what it names itself stays."""
    if file.monitoring is None:
        return file
    servers = monitoring_hosts(hosts)
    # Where there is no server or no URL, validation/monitoring.py reports that, and nothing that would follow from it.
    url = (server_url(file.monitoring, servers[0]) if servers else "") or "https://monitoring.invalid"
    tls = Tls(ca=file.monitoring.ca_file)
    ruler = Ruler(url=url, username=RULES_USER, tls=tls)
    defaults: dict[str, Section] = {
        "metrics": Metrics(url=f"{url}/api/v1/push", username=METRICS_USER, tls=tls),
        "logs": Logs(url=f"{url}/loki/api/v1/push", username=LOGS_USER, tls=tls),
        "rulers": Rulers(mimir=ruler, loki=ruler),
        "alerts": Alerts(targets=("ruler",)),
        **({"grafana": Grafana(url=url)} if file.monitoring.grafana else {}),
    }
    absent = {name: section for name, section in defaults.items() if name not in broken and getattr(file, name) is None}
    return file.model_copy(update=absent)
