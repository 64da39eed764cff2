"""GPU use per pod as custom metrics (custom.metrics.k8s.io), in the configuration format of Prometheus Adapter.

Made of the vocabulary, so the same names hold whatever exporter or version measures. A HorizontalPodAutoscaler uses them as

    metrics: [{type: Pods, pods: {metric: {name: gpu_utilization}, target: {type: AverageValue, averageValue: 700m}}}]

Source: kubernetes-sigs/prometheus-adapter docs/config.md, read 2026-11-21.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, kw_only=True)
class CustomMetric:
    """`name`: as an HPA queries it. `series`: the name in the vocabulary. `over_gpus`: what a pod with several GPUs has."""

    name: str
    series: str
    over_gpus: str


METRICS: Final = (
    CustomMetric(name="gpu_utilization", series="gpu:utilization:ratio", over_gpus="avg"),
    CustomMetric(name="gpu_tensor_activity", series="gpu:tensor_active:ratio", over_gpus="avg"),
    CustomMetric(name="gpu_memory_used_bytes", series="gpu:memory_used:bytes", over_gpus="sum"),
)


def adapter_rules(datacenter: str, cluster: str) -> list[dict[str, Any]]:
    """One rule per metric. Mimir knows the pods of every cluster, and two clusters may have one of the same name."""
    here = f"datacenter={json.dumps(datacenter)},cluster={json.dumps(cluster)}"
    return [
        {
            "seriesQuery": f'{metric.series}{{{here},namespace!="",pod!=""}}',
            "resources": {"overrides": {"namespace": {"resource": "namespace"}, "pod": {"resource": "pod"}}},
            "name": {"matches": f"^{metric.series}$", "as": metric.name},
            "metricsQuery": f"{metric.over_gpus} by (<<.GroupBy>>) (<<.Series>>{{{here},<<.LabelMatchers>>}})",
        }
        for metric in METRICS
    ]
