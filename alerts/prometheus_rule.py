"""The rules as PrometheusRule objects of the Prometheus Operator, for clusters that evaluate alerts themselves.

Only the metric rules: the operator has no resource for Loki's. They need the labels datacenter, cluster and instance, which the
scrape has to add in a cluster (relabelings of its monitors): Prometheus adds its external labels only to samples it sends
elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import alerts
from alerts.customization import NO_CUSTOMIZATION, Customization
from alerts.links import NO_LINKS, Links
from alerts.model import NAMESPACE, RuleGroup

API_VERSION: Final = "monitoring.coreos.com/v1"
KIND: Final = "PrometheusRule"


def prometheus_rules(
    *, namespace: str, labels: Mapping[str, str], links: Links = NO_LINKS, custom: Customization = NO_CUSTOMIZATION
) -> list[dict[str, Any]]:
    """One object per rule file, as `prometheus_rule` makes it."""
    return [
        prometheus_rule(name, groups, namespace=namespace, labels=labels)
        for name, groups in alerts.groups_by_file("mimir", links, custom)
    ]


def prometheus_rule(name: str, groups: Iterable[RuleGroup], *, namespace: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """An object named `gpu-fleet-<name>`, as the Kubernetes API accepts it.

    `labels`: those by which the operator's Prometheus selects rules (its ruleSelector), such as the label `release` of
    kube-prometheus-stack. Without labels the key is left out: the API server drops an empty mapping, and Pulumi's
    provider compares with what the server keeps, so `labels: {}` would be a change in every run (pulumi-kubernetes 4.32.0,
    provider.go Diff).
    """
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": f"{NAMESPACE}-{name}", "namespace": namespace, **({"labels": dict(labels)} if labels else {})},
        "spec": {"groups": [group.as_dict for group in groups]},
    }
