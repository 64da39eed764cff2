"""The inventory as a metric: each stack records the hosts and GPUs that it expects, so that a missing one can raise an alert.

Recorded as `inventory:host:expected` (always 1); if the stack file has a host's GPU count, as `inventory:gpus_expected:count`; if
it takes the host out of service, as `inventory:host:maintenance` (label `reason`). All have the labels datacenter, cluster and
instance. What our dcgm-exporter is asked for, `inventory:counters:expected` says of the whole cluster, by series of the
vocabulary (labels `exporter_mode`, `series`). The alerts are in rules/inventory.yaml.

A Kubernetes cluster has its own inventory: its nodes are expected as long as they exist in the API server, with the most GPUs
that their exporter has reported since they were last in maintenance.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from alerts.model import Rule, RuleGroup

HOST: Final = "inventory:host:expected"
GPUS: Final = "inventory:gpus_expected:count"
MAINTENANCE: Final = "inventory:host:maintenance"
COUNTERS: Final = "inventory:counters:expected"

# As kube-state-metrics writes nvidia.com/gpu, nvidia.com/gpu.shared, nvidia.com/mig-1g.10gb and amd.com/gpu.
GPU_RESOURCES: Final = "nvidia_com_gpu|nvidia_com_gpu_shared|nvidia_com_mig_.+|amd_com_gpu"

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
    counted: Collection[str] = (),
) -> list[RuleGroup]:
    """Every inventory group of one stack: its hosts, and its Kubernetes cluster if it has one. `gpus`: see inventory_groups.

    `maintenance`: hosts out of service, with the reason. `counted`: series of the vocabulary that the dcgm-exporters are asked
    for, each of them.
    """
    groups = inventory_groups(datacenter, cluster, gpus)
    if counted:
        groups.append(_counters_group(datacenter, cluster, counted))
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


def _counters_group(datacenter: str, cluster: str, counted: Collection[str]) -> RuleGroup:
    series = (f'label_replace(vector(1), "series", {json.dumps(name)}, "", "")' for name in sorted(counted))
    rule = {
        "record": COUNTERS,
        "expr": "\nor\n".join(series) + "\n",
        "labels": {"datacenter": datacenter, "cluster": cluster, "exporter_mode": "dcgm-exporter"},
    }
    return RuleGroup(name=f"inventory-{datacenter}-{cluster}-counters", interval=INTERVAL, rules=(rule,))


def _literal(text: str) -> str:
    """A replacement of label_replace that is the text itself: `$` refers to groups there."""
    return json.dumps(text.replace("$", "$$"), ensure_ascii=False)


def kubernetes_inventory_group(datacenter: str, cluster: str) -> RuleGroup:
    """The GPU nodes of a cluster, from kube-state-metrics: NVIDIA's, also with MIG instances or shares, and AMD's.

    How many GPUs they have is what their exporter has reported: the capacity of a node counts MIG instances (strategy single)
    or shares (time-slicing), and with MIG so does the label nvidia.com/gpu.count. A failed GPU disappears from both, so what
    rules/inventory.yaml remembers of a node is expected. One that an autoscaler removed is no longer in the API server. Where no
    device plugin offers the GPUs, they are dynamic resources (DRA), and no number is expected (host:gpus_hidden:bool).
    """
    here = f"datacenter={json.dumps(datacenter)}, cluster={json.dumps(cluster)}"
    capacity = f'kube_node_status_capacity{{{here}, resource=~"{GPU_RESOURCES}"}} > 0'
    # Of hours, so that a day costs 24 samples per node.
    nodes = f"max by (node) (max_over_time(({capacity})[1d:1h]) or {capacity}) and on (node) kube_node_info{{{here}}}"
    offering, existing = _instances(nodes), _instances(f"kube_node_info{{{here}}}")
    gpus = f"max by (instance) (instance:gpus_most:count{{{here}}})"
    named = f"{offering}\nor\n(0 * {gpus} + 1 and on (instance)\n{existing})"
    labels = {"datacenter": datacenter, "cluster": cluster}
    return RuleGroup(
        name=f"inventory-{datacenter}-{cluster}-kubernetes",
        interval=INTERVAL,
        rules=(
            {"record": HOST, "expr": f"{named}\n", "labels": labels},
            {"record": GPUS, "expr": f"{gpus}\nand on (instance)\n{offering}\n", "labels": labels},
        ),
    )


def _instances(nodes: str) -> str:
    return f'group by (instance) (label_replace({nodes}, "instance", "$1", "node", "(.+)"))'


def _rules(datacenter: str, cluster: str, gpus: Mapping[str, int | None]) -> Iterator[Rule]:
    counted = {host: count for host, count in gpus.items() if count is not None}
    for record, expected in ((HOST, dict.fromkeys(gpus, 1)), (GPUS, counted)):
        if expected:
            yield {"record": record, "expr": _values(expected), "labels": {"datacenter": datacenter, "cluster": cluster}}


def _values(expected: Mapping[str, int]) -> str:
    series = (f'label_replace(vector({count}), "instance", {json.dumps(host)}, "", "")' for host, count in expected.items())
    return "\nor\n".join(series) + "\n"
