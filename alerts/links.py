"""What an on-call engineer needs beside the texts of an alert: links and commands, added as annotations at deployment.

Annotations, and not text of the templates, so that webhooks, Alertmanager's page and Grafana have them too. The rule files name
no server: they can be loaded unchanged, without links.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import quote

from alerts.model import Rule, RuleGroup

# Slurm and Kubernetes know a host by its name, which is the label `instance`.
DRAIN: Final = {
    "drain_slurm": 'scontrol update nodename={{ $labels.instance }} state=drain reason="{alert}"',
    "drain_kubernetes": "kubectl drain {{ $labels.instance }} --ignore-daemonsets --delete-emptydir-data",
    # So that the reset or reboot, which the alert may ask for, pages nobody.
    "maintenance": "ssh {{ $labels.instance }} sudo /opt/gpu-fleet/bin/gpu-fleet-maintenance start --free-gpus repair",
}
# The jobs that the alert's GPU has, or all those of its host. The kernel log names a GPU by its address.
_ON_HOST: Final = "datacenter=%q,cluster=%q,instance=%q"
_OF_HOST: Final = "$labels.datacenter $labels.cluster $labels.instance"
JOBS: Final = (
    f'{{{{ $jobs := printf "gpu:job:info{{{_ON_HOST},gpu=~%q,uuid=~%q}}" {_OF_HOST} '
    '(or $labels.gpu ".*") (or $labels.uuid ".*") }}'
    f'{{{{ if $labels.pci }}}}{{{{ $jobs = printf "%s and on (uuid) gpu:address:info{{{_ON_HOST},pci=~\\"%s.*\\"}}" '
    f"$jobs {_OF_HOST} $labels.pci }}}}{{{{ end }}}}"
    '{{ range $number, $job := query (printf "count by (job_id, user, account) (%s)" $jobs) | sortByLabel "job_id" }}'
    "{{ if $number }}, {{ end }}{{ .Labels.job_id }} of {{ .Labels.user }}{{ with .Labels.account }} ({{ . }}){{ end }}{{ end }}"
)
# The templates replace its start with the time of the alert, for whoever opens the link later.
_RANGE: Final = {"from": "now-1h", "to": "now"}


@dataclass(frozen=True, kw_only=True)
class GrafanaLinks:
    """`url`: of Grafana, as a browser reaches it. `incident`, `host`, `cluster`: uids of the dashboards that alerts about GPUs
    and fabric, about a host, and about a cluster link to.

    `logs`: uid of the Loki data source; None: Grafana has none. `runbooks`: by alert, the path of its runbook below `url`.
    """

    url: str
    incident: str
    host: str
    cluster: str
    logs: str | None = None
    runbooks: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Links:
    """`runbooks`: URL of the checkout's files in a browser; it takes precedence over the runbooks in Grafana.

    `has_jobs`: whether jobs are recorded, so that a ruler which can query them names them.
    """

    runbooks: str | None = None
    grafana: GrafanaLinks | None = None
    has_jobs: bool = False


NO_LINKS: Final = Links()


def with_links(group: RuleGroup, links: Links) -> RuleGroup:
    """Adds what applies to each alert: `runbook_url`, `dashboard_url`, `logs_url`, `jobs`, and those of DRAIN."""
    return replace(group, rules=tuple(_with_links(rule, links) for rule in group.rules))


def _with_links(rule: Rule, links: Links) -> Rule:
    if "alert" not in rule:
        return rule
    annotations: dict[str, Any] = {**rule.get("annotations", {})}
    labels: Mapping[str, str] = rule.get("labels", {})
    # The alert has the label where its texts use it (gpu_fleet/signals/rules.py checks that).
    is_of_host = any("$labels.instance" in str(text) for text in annotations.values())
    if is_of_host and labels.get("severity") == "critical" and labels.get("scope") in ("gpu", "fabric"):
        annotations |= {name: text.replace("{alert}", rule["alert"]) for name, text in DRAIN.items()}
    if links.has_jobs and is_of_host and labels.get("scope") in ("gpu", "fabric", "host"):
        annotations["jobs"] = JOBS
    if runbook := _runbook(rule, links):
        annotations["runbook_url"] = runbook
    if links.grafana:
        annotations["dashboard_url"] = _dashboard(links.grafana, labels.get("scope"), is_of_host=is_of_host)
        if is_of_host and links.grafana.logs:
            annotations["logs_url"] = _logs(links.grafana.url, links.grafana.logs)
    return {**rule, "annotations": annotations}


def _runbook(rule: Rule, links: Links) -> str | None:
    path = rule.get("annotations", {}).get("runbook")
    if path and path.startswith(("https://", "http://")):  # of a rule of the stack's own
        return str(path)
    if path and links.runbooks:
        return f"{links.runbooks.rstrip('/')}/{path}"
    if links.grafana and (panel := links.grafana.runbooks.get(rule["alert"])):
        return f"{links.grafana.url.rstrip('/')}{panel}"
    return None


def _dashboard(grafana: GrafanaLinks, scope: str | None, *, is_of_host: bool) -> str:
    names = ("datacenter", "cluster", "instance") if is_of_host else ("datacenter", "cluster")
    of_host = grafana.incident if scope in ("gpu", "fabric") else grafana.host
    uid = of_host if is_of_host else grafana.cluster
    # `index`, because Grafana prints "[no value]" for a missing `$labels.name`.
    variables = "".join(f'{{{{ with index $labels "{name}" }}}}&var-{name}={{{{ . | urlquery }}}}{{{{ end }}}}' for name in names)
    return f"{grafana.url.rstrip('/')}/d/{uid}?orgId=1{variables}"


def _logs(url: str, uid: str) -> str:
    """Explore with all kernel lines of the host that are in Loki: what precedes an XID often explains it."""
    place = ("datacenter", "cluster", "instance")  # two datacenters may have a host of one name
    selector = ", ".join(['job="kernel"', *(f'{name}="{name.upper()}"' for name in place)])
    query = {"refId": "A", "expr": f"{{{selector}}}", "datasource": {"type": "loki", "uid": uid}}
    pane = {"datasource": uid, "queries": [query], "range": _RANGE}
    panes = quote(json.dumps({"logs": pane}, separators=(",", ":")), safe="")
    for name in place:
        panes = panes.replace(name.upper(), f'{{{{ index $labels "{name}" | urlquery }}}}')
    return f"{url.rstrip('/')}/explore?schemaVersion=1&orgId=1&panes={panes}"
