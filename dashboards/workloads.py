"""Pods and namespaces: which pod uses which GPU, and how well? Needs an exporter that reports pods: dcgm-exporter or AMD's."""

from __future__ import annotations

from typing import Any

from dashboards.layout import Row, build, link_to_host
from dashboards.panels import NO_THRESHOLDS, NONE, YELLOW_FROM_ONE, Column, Query, one_number, rows, time_series
from dashboards.queries import work as q
from dashboards.queries.common import CLUSTER

POD = "{{namespace}} / {{pod}}"
OUTSIDE = "no pod has a GPU, or the exporter does not report pods"
SELECTOR = f'{CLUSTER}, namespace=~"$namespace"'


def dashboard() -> dict[str, Any]:
    return build(
        "workloads",
        "GPU fleet / Pods and namespaces",
        "GPUs by pod: which pod uses which GPU, which pods are pending, which GPUs are allocated but idle. Empty outside "
        "Kubernetes.",
        variables=("datacenter", "cluster", "namespace"),
        rows=(
            Row("Now", _now()),
            Row("Pods and GPUs", (_pods(), _pending())),
            Row("Namespaces", _namespaces()),
            Row("Top 10 pods", _busiest()),
        ),
    )


def _number(title: str, query: str, description: str, *, can_warn: bool = False) -> Any:
    return one_number(
        title,
        Query(query, title),
        description=description,
        unit="short",
        thresholds=YELLOW_FROM_ONE if can_warn else NO_THRESHOLDS,
        width=6,
        if_none="no data from kube-state-metrics",
        has_sparkline=False,
    )


def _now() -> tuple[Any, ...]:
    return (
        _number("Pods with a GPU", q.pods_with_gpus(SELECTOR), "Pods with at least one GPU."),
        _number("Allocatable GPUs", q.gpus_allocatable(CLUSTER), "GPUs that the nodes offer to the scheduler."),
        _number("GPUs without a pod", q.gpus_without_pod(CLUSTER), "GPUs of these clusters that are not allocated to a pod."),
        _number("Pending GPU requests", q.gpus_requested(SELECTOR, "Pending"), "GPUs requested by pending pods.", can_warn=True),
    )


def _pods() -> Any:
    return rows(
        "Pods and their GPUs",
        [
            Query(q.of_each_pod("gpu:utilization:ratio", SELECTOR), ""),
            Query(q.of_each_pod("gpu:memory_used:bytes", SELECTOR), ""),
            Query(q.of_each_pod("gpu:power:watts", SELECTOR), ""),
            Query(q.of_each_pod("gpu:tensor_active:ratio", SELECTOR), ""),
        ],
        description="One row per allocated GPU. A pod with 0 % utilization and memory in use blocks a GPU for others.",
        width=16,
        height=10,
        columns={
            "namespace": Column(heading="Namespace"),
            "pod": Column(heading="Pod"),
            "container": Column(heading="Container"),
            "instance": Column(heading="Node", link=link_to_host("gpu")),
            "gpu": Column(heading="GPU", width=60),
            "Value #A": Column(heading="GPU utilization", unit="percentunit"),
            "Value #B": Column(heading="Memory used", unit="bytes"),
            "Value #C": Column(heading="Power draw", unit="watt"),
            "Value #D": Column(heading="Tensor core activity", unit="percentunit"),
        },
        sort_by="Pod",
        descending=False,
        if_none=OUTSIDE,
    )


def _pending() -> Any:
    return rows(
        "Pending pods",
        [Query(q.pending_pods(SELECTOR), "")],
        description="Pending pods and the GPUs they request, from kube-state-metrics; at most fifty.",
        width=8,
        height=10,
        columns={
            "namespace": Column(heading="Namespace"),
            "pod": Column(heading="Pod"),
            "Value": Column(heading="GPUs", width=70),
        },
        sort_by="GPUs",
        if_none=NONE,
    )


def _course(title: str, query: str, legend: str, description: str, unit: str, most: float | None = None, **more: Any) -> Any:
    return time_series(
        title,
        [Query(query, legend)],
        description=description,
        unit=unit,
        thresholds=NO_THRESHOLDS,
        **{"fill": 0, "width": 12, "if_none": OUTSIDE, "most": most, **more},
    )


def _namespaces() -> tuple[Any, ...]:
    return (
        _course(
            "Allocated GPUs",
            q.gpus_by_namespace(SELECTOR),
            "{{namespace}}",
            "GPUs allocated to pods of the namespace.",
            "short",
            fill=30,
            is_stacked=True,
        ),
        _course(
            "GPU power",
            q.power_of_namespaces(SELECTOR),
            "{{namespace}}",
            "Power draw of GPUs allocated to pods of the namespace; a shared GPU counts for each namespace.",
            "watt",
            fill=30,
            is_stacked=True,
        ),
    )


def _busiest() -> tuple[Any, ...]:
    return (
        _course(
            "Pods by GPU utilization",
            q.of_pods("gpu:utilization:ratio", SELECTOR),
            POD,
            "Average utilization of a pod's GPUs; the ten highest.",
            "percentunit",
            1,
        ),
        _course(
            "Pods by GPU memory used",
            q.memory_of_pods(SELECTOR),
            POD,
            "Used memory of a pod's GPUs; the ten highest.",
            "bytes",
        ),
        *(
            _course(
                f"Pods by {what}",
                q.of_pods(series, SELECTOR),
                POD,
                f"{meaning} of a pod's GPUs; the ten highest. Requires profiling counters.",
                "percentunit",
                1,
            )
            for what, series, meaning in (
                ("SM occupancy", "gpu:sm_occupancy:ratio", "Warps resident on the SMs, of the most that they can hold,"),
                ("tensor core activity", "gpu:tensor_active:ratio", "Share of cycles in which the tensor cores were active,"),
                ("FP64 pipe activity", "gpu:fp64_active:ratio", "Share of cycles in which the FP64 pipe was active,"),
                ("FP32 pipe activity", "gpu:fp32_active:ratio", "Share of cycles in which the FP32 pipe was active,"),
                ("FP16 pipe activity", "gpu:fp16_active:ratio", "Share of cycles in which the FP16 pipe was active,"),
            )
        ),
        _course(
            "Pods by GPU power",
            q.of_pods("gpu:power:watts", SELECTOR),
            POD,
            "Average power draw of a pod's GPUs; the ten highest.",
            "watt",
        ),
    )
