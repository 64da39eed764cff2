"""The inventory as a metric: each stack records the hosts and GPUs that it expects, so that a missing one can raise an alert.

Recorded as `inventory:host:expected` (always 1); if the stack file has a host's GPU count, as `inventory:gpus_expected:count`; if
it takes the host out of service, as `inventory:host:maintenance` (label `reason`). All have the labels datacenter, cluster and
instance. The alerts are in rules/inventory.yaml.

A Kubernetes cluster has its own inventory: its nodes are expected as long as they exist in the API server, with the GPUs that
they offered within the last day.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from alerts.model import Rule, RuleGroup

HOST: Final = "inventory:host:expected"
GPUS: Final = "inventory:gpus_expected:count"
MAINTENANCE: Final = "inventory:host:maintenance"

INTERVAL: Final = "1m"
# One rule per host would be thousands of rules; all hosts in one rule are slow, because each `or` scans its left side.
HOSTS_PER_GROUP: Final = 500


def stack_inventory(
    datacenter: str,
    cluster: str,
    gpus: Mapping[str, int | None],
    *,
    has_kubernetes: bool,
    maintenance: Mapping[str, str] | None = None,
) -> list[RuleGroup]:
    """Every inventory group of one stack: its hosts, and its Kubernetes cluster if it has one. `gpus`: see inventory_groups.

    `maintenance`: hosts out of service, with the reason.
    """
    groups = inventory_groups(datacenter, cluster, gpus)
    if maintenance:
        groups.append(_maintenance_group(datacenter, cluster, maintenance))
    return [*groups, kubernetes_inventory_group(datacenter, cluster)] if has_kubernetes else groups


def inventory_groups(datacenter: str, cluster: str, gpus: Mapping[str, int | None]) -> list[RuleGroup]:
    """The rule groups of one stack. `gpus`: host to its GPU count; None: unknown. The group names are unique per stack."""
    hosts = sorted(gpus)
    return [
        RuleGroup(
            name=f"inventory-{datacenter}-{cluster}-{start // HOSTS_PER_GROUP}",
            interval=INTERVAL,
            rules=tuple(_rules(datacenter, cluster, {host: gpus[host] for host in hosts[start : start + HOSTS_PER_GROUP]})),
        )
        for start in range(0, len(hosts), HOSTS_PER_GROUP)
    ]


def _maintenance_group(datacenter: str, cluster: str, reasons: Mapping[str, str]) -> RuleGroup:
    series = (
        f'label_replace(label_replace(vector(1), "instance", {json.dumps(host)}, "", ""), "reason", {_literal(reason)}, "", "")'
        for host, reason in sorted(reasons.items())
    )
    rule = {
        "record": MAINTENANCE,
        "expr": "\nor\n".join(series) + "\n",
        "labels": {"datacenter": datacenter, "cluster": cluster},
    }
    return RuleGroup(name=f"inventory-{datacenter}-{cluster}-maintenance", interval=INTERVAL, rules=(rule,))


def _literal(text: str) -> str:
    """A replacement of label_replace that is the text itself: `$` refers to groups there."""
    return json.dumps(text.replace("$", "$$"), ensure_ascii=False)


def kubernetes_inventory_group(datacenter: str, cluster: str) -> RuleGroup:
    """The GPU nodes of a cluster, from kube-state-metrics.

    A failed GPU disappears from the node's capacity when the device plugin restarts, so the maximum of a day is expected. A node
    that an autoscaler removed is no longer in the API server and not expected.
    """
    here = f"datacenter={json.dumps(datacenter)}, cluster={json.dumps(cluster)}"
    capacity = f'kube_node_status_capacity{{{here}, resource="nvidia_com_gpu"}}'
    gpus = f"max_over_time({capacity}[1d]) > 0 and on (node) kube_node_info{{{here}}}"

    def of_nodes(aggregation: str) -> str:
        return f'{aggregation} by (instance) (label_replace({gpus}, "instance", "$1", "node", "(.+)"))\n'

    labels = {"datacenter": datacenter, "cluster": cluster}
    return RuleGroup(
        name=f"inventory-{datacenter}-{cluster}-kubernetes",
        interval=INTERVAL,
        rules=(
            {"record": HOST, "expr": of_nodes("group"), "labels": labels},
            {"record": GPUS, "expr": of_nodes("max"), "labels": labels},
        ),
    )


def _rules(datacenter: str, cluster: str, gpus: Mapping[str, int | None]) -> Iterator[Rule]:
    counted = {host: count for host, count in gpus.items() if count is not None}
    for record, expected in ((HOST, dict.fromkeys(gpus, 1)), (GPUS, counted)):
        if expected:
            yield {"record": record, "expr": _values(expected), "labels": {"datacenter": datacenter, "cluster": cluster}}


def _values(expected: Mapping[str, int]) -> str:
    series = (f'label_replace(vector({count}), "instance", {json.dumps(host)}, "", "")' for host, count in expected.items())
    return "\nor\n".join(series) + "\n"
