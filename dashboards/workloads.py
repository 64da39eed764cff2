"""Pods and namespaces: who uses the GPUs, and how well? Needs an exporter that names pods: dcgm-exporter or AMD's."""

from __future__ import annotations

from typing import Any

from dashboards import queries as q
from dashboards.layout import build
from dashboards.panels import NO_THRESHOLDS, Query, time_series

POD = "{{namespace}} / {{pod}}"


def dashboard() -> dict[str, Any]:
    def panel(title: str, query: str, legend: str, description: str, unit: str, most: float | None = None) -> Any:
        return time_series(
            title,
            [Query(query, legend)],
            description=description,
            unit=unit,
            thresholds=NO_THRESHOLDS,
            filled=False,
            width=12,
            most=most,
        )

    return build(
        "workloads",
        "GPU fleet / Pods and namespaces",
        "GPUs by the pods that hold them. Empty outside Kubernetes.",
        variables=("datacenter", "cluster"),
        rows=(
            (
                "Namespaces",
                (
                    panel(
                        "GPUs held",
                        q.gpus_by_namespace(q.CLUSTER),
                        "{{namespace}}",
                        "GPUs on which a pod of the namespace runs.",
                        "short",
                    ),
                    panel(
                        "GPU power",
                        q.energy_of_namespaces(q.CLUSTER),
                        "{{namespace}}",
                        "Power of the GPUs on which a pod of the namespace runs; a shared GPU counts for each.",
                        "watt",
                    ),
                ),
            ),
            (
                "Pods",
                (
                    panel(
                        "Busiest pods",
                        q.of_pods("gpu:utilization:ratio", q.CLUSTER),
                        POD,
                        "Average utilisation of a pod's GPUs; the ten highest.",
                        "percentunit",
                        1,
                    ),
                    panel(
                        "Pods by GPU memory",
                        q.memory_of_pods(q.CLUSTER),
                        POD,
                        "Memory in use on a pod's GPUs; the ten with most.",
                        "bytes",
                    ),
                    panel(
                        "Pods by tensor core use",
                        q.of_pods("gpu:tensor_active:ratio", q.CLUSTER),
                        POD,
                        "Share of cycles in which the tensor cores of a pod's GPUs worked; the ten highest.",
                        "percentunit",
                        1,
                    ),
                    panel(
                        "Pods by power",
                        q.of_pods("gpu:power:watts", q.CLUSTER),
                        POD,
                        "Average power of a pod's GPUs; the ten highest.",
                        "watt",
                    ),
                ),
            ),
        ),
    )
