"""The inventory as a metric: each stack records the hosts and GPUs that it expects, so that what is missing can be an alert.

Recorded as `inventory:host:expected` (always 1) and, where the stack file counts a host's GPUs, `inventory:gpus_expected:count`,
with labels datacenter, cluster and instance. rules/inventory.yaml judges them.

A Kubernetes cluster keeps its own inventory: its nodes are expected as long as the API server has them, with the GPUs that they
offered within the last day.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from alerts.model import Rule, RuleGroup

HOST: Final = "inventory:host:expected"
GPUS: Final = "inventory:gpus_expected:count"

INTERVAL: Final = "1m"
# One rule per host would be thousands of rules; all hosts in one are slow, because each `or` walks what is before it.
HOSTS_PER_GROUP: Final = 500


def inventory_groups(datacenter: str, cluster: str, gpus: Mapping[str, int | None]) -> list[RuleGroup]:
    """The rule groups of one stack. `gpus`: host to its GPUs; None: not counted. The names tell stacks of one ruler apart."""
    hosts = sorted(gpus)
    return [
        RuleGroup(
            name=f"inventory-{datacenter}-{cluster}-{start // HOSTS_PER_GROUP}",
            interval=INTERVAL,
            rules=tuple(_rules(datacenter, cluster, {host: gpus[host] for host in hosts[start : start + HOSTS_PER_GROUP]})),
        )
        for start in range(0, len(hosts), HOSTS_PER_GROUP)
    ]


def kubernetes_inventory_group(datacenter: str, cluster: str) -> RuleGroup:
    """The nodes with GPUs of a cluster, by kube-state-metrics.

    A GPU that fails leaves a node's capacity when the device plugin starts anew, so the most of a day is expected; a node that an
    autoscaler took away is gone from the API server, and nobody misses it.
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
