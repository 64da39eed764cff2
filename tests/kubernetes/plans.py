"""Plans of clusters for the tests: one good one, and changes to its section."""

from __future__ import annotations

from typing import Any

from components.kubernetes.values import ClusterPlan
from gpu_fleet.host.scrape_interval import DEFAULT_S
from gpu_fleet.stackfile.counters import counters
from gpu_fleet.stackfile.kubernetes import Kubernetes
from gpu_fleet.stackfile.readiness import Readiness
from gpu_fleet.stackfile.sections import Logs, Metrics

MIMIR = {"url": "https://mimir.example.com/api/v1/push", "tenant": "us-west", "username": "writer"}
LOKI = {"url": "https://loki.example.com/loki/api/v1/push"}


def plan(
    *,
    metrics: dict[str, Any] = MIMIR,
    logs: dict[str, Any] | None = LOKI,
    dcgm: str = "standard",
    readiness: dict[str, Any] | None = None,
    scrape_interval_s: int = DEFAULT_S,
    **section: Any,
) -> ClusterPlan:
    """`section`: keys of the stack file's section `kubernetes`."""
    return ClusterPlan(
        datacenter="us-west",
        cluster="training",
        section=Kubernetes.model_validate(section),
        metrics=Metrics.model_validate(metrics),
        logs=Logs.model_validate(logs) if logs else None,
        counters=counters(dcgm),
        readiness=None if readiness is None else Readiness.model_validate(readiness),
        scrape_interval_s=scrape_interval_s,
    )
