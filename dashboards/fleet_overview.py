"""Fleet overview: is the fleet healthy and busy, and which datacenter is not? Suitable for a wall screen."""

from __future__ import annotations

from typing import Any

from dashboards import parts
from dashboards.layout import Row, build, link_to
from dashboards.panels import (
    NO_THRESHOLDS,
    NONE,
    RED_FROM_ONE,
    YELLOW_FROM_ONE,
    Column,
    Limit,
    Query,
    bars,
    log_counts,
    one_number,
    rows,
    time_series,
)
from dashboards.queries import fleet as q
from dashboards.queries import health
from dashboards.queries.common import (
    CLUSTER,
    ONE_CLUSTER,
    averaged,
    highest,
    of_clusters,
    per_gpu,
    summed,
    top,
)

CLUSTERS = "{{datacenter}} / {{cluster}}"
GPU = "{{cluster}} {{instance}} GPU {{gpu}}"


def dashboard() -> dict[str, Any]:
    return build(
        "overview",
        "GPU fleet / Overview",
        "Every datacenter at a glance: missing hosts and GPUs, firing alerts, utilization, and a comparison of clusters.",
        variables=("datacenter", "cluster"),
        rows=(
            Row("Now", _now()),
            Row("Alerts and XIDs", _problems()),
            Row("Comparison of clusters", _compared()),
            Row("Top 10", _extremes()),
        ),
    )


def _now() -> tuple[Any, ...]:
    return (
        parts.critical_alerts(CLUSTER, 4),
        parts.warnings(CLUSTER, 4),
        parts.hosts_of(CLUSTER, 4),
        parts.gpus_of(CLUSTER, 4),
        one_number(
            "Busy GPUs",
            Query(q.busy_gpus(CLUSTER), "busy"),
            description="GPUs with a utilization of at least 10 %.",
            unit="short",
            thresholds=NO_THRESHOLDS,
            width=4,
        ),
        one_number(
            "Allocated but idle",
            Query(q.idle_with_memory(CLUSTER), "idle"),
            description="GPUs that were idle for half an hour while a process held more than 1 GiB of their memory.",
            unit="short",
            thresholds=YELLOW_FROM_ONE,
            width=4,
            link=link_to("capacity", "datacenter", "cluster"),
        ),
    )


def _problems() -> tuple[Any, ...]:
    return (
        parts.firing_alerts(CLUSTER, has_cluster=True),
        log_counts(
            "XIDs by code",
            Query(health.lines_by_code(CLUSTER), "XID {{xid}}"),
            description="XID errors logged by NVIDIA's driver, per minute and code.",
            width=24,
            if_none=NONE,
        ),
    )


def _compared() -> tuple[Any, ...]:
    by = ONE_CLUSTER
    return (
        rows(
            "Clusters",
            [
                Query(q.missing_hosts_by(CLUSTER, by), ""),
                Query(q.gpus_by(CLUSTER, by), ""),
                Query(q.missing_gpus_by(CLUSTER, by), ""),
                Query(averaged("gpu:utilization:ratio", CLUSTER, by), ""),
                Query(q.memory_used_ratio(CLUSTER, by), ""),
                Query(summed("gpu:power:watts", CLUSTER, by), ""),
                Query(highest("gpu:temperature:celsius", CLUSTER, by), ""),
                Query(q.firing_by(CLUSTER, "critical", by), ""),
            ],
            description="One row per cluster. Click a heading to sort, a cluster to open its dashboard.",
            width=24,
            columns={
                "datacenter": Column(heading="Datacenter"),
                "cluster": Column(
                    heading="Cluster",
                    link="/d/gpu-fleet-cluster?var-datacenter=${__data.fields.Datacenter}&var-cluster=${__value.raw}&${__url_time_range}",
                ),
                "Value #H": Column(heading="Critical alerts", thresholds=RED_FROM_ONE),
                "Value #A": Column(heading="Missing hosts", thresholds=RED_FROM_ONE),
                "Value #C": Column(heading="Missing GPUs", thresholds=RED_FROM_ONE),
                "Value #B": Column(heading="GPUs"),
                "Value #D": Column(heading="GPU utilization", unit="percentunit"),
                "Value #E": Column(heading="GPU memory used", unit="percentunit"),
                "Value #F": Column(heading="GPU power", unit="watt"),
                "Value #G": Column(heading="Highest temperature", unit="celsius", thresholds=parts.TEMPERATURE),
            },
            sort_by="Critical alerts",
            height=6,
            if_none="nothing reports",
        ),
        time_series(
            "GPU utilization",
            [Query(of_clusters("cluster:gpu_utilization:ratio", CLUSTER), CLUSTERS)],
            description="Share of time in which at least one kernel was running, average over the GPUs of a cluster.",
            unit="percentunit",
            thresholds=NO_THRESHOLDS,
            fill=0,
            width=12,
            most=1,
        ),
        time_series(
            "GPU memory used",
            [Query(q.memory_used_ratio_of_clusters(CLUSTER), CLUSTERS)],
            description="Used memory as a share of all GPU memory of a cluster.",
            unit="percentunit",
            thresholds=NO_THRESHOLDS,
            fill=0,
            width=12,
            most=1,
        ),
        time_series(
            "GPU power",
            [
                Query(of_clusters("cluster:gpu_power:watts", CLUSTER), CLUSTERS),
                Limit(q.power_limit(CLUSTER), "total power limit"),
            ],
            description="Power draw of the GPUs per cluster, stacked. Dashed: their power limits, the highest sum of the "
            "last day, so that it does not fall when hosts are lost.",
            unit="watt",
            thresholds=NO_THRESHOLDS,
            fill=30,
            width=12,
            is_stacked=True,
        ),
        time_series(
            "Reporting GPUs",
            [Query(of_clusters("cluster:gpus:count", CLUSTER), CLUSTERS)],
            description="A drop is a lost GPU, a lost host, or a change of the stack.",
            unit="short",
            thresholds=NO_THRESHOLDS,
            fill=0,
            width=12,
        ),
    )


def _extremes() -> tuple[Any, ...]:
    return (
        bars(
            "Hottest GPUs",
            Query(top(10, per_gpu("gpu:temperature:celsius", CLUSTER)), GPU),
            description="The ten GPUs with the highest temperature.",
            unit="celsius",
            thresholds=parts.TEMPERATURE,
            width=12,
            most=100,
        ),
        bars(
            "Hosts with the most free GPU memory",
            Query(
                top(10, summed("gpu:memory_free:bytes", CLUSTER, "datacenter, cluster, instance")),
                "{{cluster}} {{instance}}",
            ),
            description="The ten hosts with the most free GPU memory, summed over their GPUs.",
            unit="bytes",
            thresholds=NO_THRESHOLDS,
            width=12,
        ),
    )
