"""Pods and namespaces: who uses which GPU, and how well? Needs an exporter that names pods: dcgm-exporter or AMD's."""

from __future__ import annotations

from typing import Any

from dashboards.layout import Row, build, link_to_host
from dashboards.panels import NO_THRESHOLDS, NONE, YELLOW_FROM_ONE, Column, Query, one_number, rows, time_series
from dashboards.queries import work as q
from dashboards.queries.common import CLUSTER

POD = "{{namespace}} / {{pod}}"
OUTSIDE = "no pod holds a GPU, or the exporter does not name pods"
SELECTOR = f'{CLUSTER}, namespace=~"$namespace"'


def dashboard() -> dict[str, Any]:
    return build(
        "workloads",
        "GPU fleet / Pods and namespaces",
        "GPUs by the pods that hold them: which pod uses which GPU, who waits, who wastes. Empty outside Kubernetes.",
        variables=("datacenter", "cluster", "namespace"),
        rows=(
            Row("Now", _now()),
            Row("Which pod uses which GPU", (_pods(), _waiting())),
            Row("Namespaces", _namespaces()),
            Row("Pods", _busiest()),
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
        if_none="not told: kube-state-metrics does not report",
    )


def _now() -> tuple[Any, ...]:
    return (
        _number("Pods with a GPU", q.pods_with_gpus(SELECTOR), "Pods that hold at least one GPU."),
        _number("GPUs that pods may get", q.gpus_allocatable(CLUSTER), "What the nodes offer to the scheduler."),
        _number("GPUs without a pod", q.gpus_without_pod(CLUSTER), "GPUs of these clusters that no pod holds."),
        _number("GPUs waited for", q.gpus_requested(SELECTOR, "Pending"), "GPUs that pending pods ask for.", can_warn=True),
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
        description="One row for each GPU that a pod holds. A pod with 0 % and memory in use keeps a GPU from others.",
        width=16,
        height=10,
        columns={
            "namespace": Column(heading="Namespace"),
            "pod": Column(heading="Pod"),
            "container": Column(heading="Container"),
            "instance": Column(heading="Node", link=link_to_host("gpu")),
            "gpu": Column(heading="GPU", width=60),
            "Value #A": Column(heading="Utilisation", unit="percentunit"),
            "Value #B": Column(heading="Memory", unit="bytes"),
            "Value #C": Column(heading="Power", unit="watt"),
            "Value #D": Column(heading="Tensor cores", unit="percentunit"),
        },
        sort_by="Pod",
        descending=False,
        if_none=OUTSIDE,
    )


def _waiting() -> Any:
    return rows(
        "Pods that wait for GPUs",
        [Query(q.waiting_pods(SELECTOR), "")],
        description="Pending pods and the GPUs they ask for, by kube-state-metrics; at most fifty.",
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
            "GPUs held",
            q.gpus_by_namespace(SELECTOR),
            "{{namespace}}",
            "GPUs on which a pod of the namespace runs.",
            "short",
            fill=30,
            is_stacked=True,
        ),
        _course(
            "GPU power",
            q.power_of_namespaces(SELECTOR),
            "{{namespace}}",
            "Power of the GPUs on which a pod of the namespace runs; a shared GPU counts for each.",
            "watt",
            fill=30,
            is_stacked=True,
        ),
    )


def _busiest() -> tuple[Any, ...]:
    return (
        _course(
            "Busiest pods",
            q.of_pods("gpu:utilization:ratio", SELECTOR),
            POD,
            "Average utilisation of a pod's GPUs; the ten highest.",
            "percentunit",
            1,
        ),
        _course(
            "Pods by GPU memory",
            q.memory_of_pods(SELECTOR),
            POD,
            "Memory in use on a pod's GPUs; the ten with most.",
            "bytes",
        ),
        _course(
            "Pods by tensor core use",
            q.of_pods("gpu:tensor_active:ratio", SELECTOR),
            POD,
            "Share of cycles in which the tensor cores of a pod's GPUs worked; the ten highest. Needs profiling counters.",
            "percentunit",
            1,
        ),
        _course(
            "Pods by power",
            q.of_pods("gpu:power:watts", SELECTOR),
            POD,
            "Average power of a pod's GPUs; the ten highest.",
            "watt",
        ),
    )
