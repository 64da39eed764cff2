"""One cluster: which of its hosts is missing, hot, throttled or idle?"""

from __future__ import annotations

from typing import Any

from dashboards import parts
from dashboards.layout import Row, build, link_to_host
from dashboards.panels import (
    NO_THRESHOLDS,
    NONE,
    NONE_REPORTED,
    RED_FROM_ONE,
    YELLOW_FROM_ONE,
    Column,
    Limit,
    Query,
    log_counts,
    rows,
    time_series,
)
from dashboards.queries import fabric, health, pipeline
from dashboards.queries import fleet as q
from dashboards.queries.common import CLUSTER, MODE, ONE_HOST, averaged, highest, summed

# By exporter: a quantile cannot be computed from those of two. The words are short, so that a narrow legend shows both.
_QUANTILES = {0.1: "p10 {{exporter_mode}}", 0.5: "p50 {{exporter_mode}}", 0.9: "p90 {{exporter_mode}}"}


def dashboard() -> dict[str, Any]:
    return build(
        "cluster",
        "GPU fleet / Cluster",
        "The hosts of a cluster in a table, and utilization, temperature and throttling of its GPUs.",
        variables=("datacenter", "cluster", "exporter_mode"),
        rows=(
            Row("Now", _now()),
            Row("Hosts and alerts", (_hosts(), parts.firing_alerts(CLUSTER, has_cluster=False))),
            Row("Utilization and power", _use()),
            Row("Health", _health()),
            Row("NVLink fabric", _fabric()),
        ),
    )


def _now() -> tuple[Any, ...]:
    return (
        parts.critical_alerts(CLUSTER, 6),
        parts.warnings(CLUSTER, 6),
        parts.hosts_of(CLUSTER, 6),
        parts.gpus_of(CLUSTER, 6),
    )


def _hosts() -> Any:
    return rows(
        "Hosts of the cluster",
        [
            Query(q.missing_gpus_by(CLUSTER, ONE_HOST), ""),
            Query(q.firing_by(CLUSTER, "critical", ONE_HOST), ""),
            Query(averaged("gpu:utilization:ratio", MODE, ONE_HOST), ""),
            Query(q.memory_used_ratio(MODE, ONE_HOST), ""),
            Query(summed("gpu:memory_free:bytes", MODE, ONE_HOST), ""),
            Query(highest("gpu:temperature:celsius", MODE, ONE_HOST), ""),
            Query(q.throttled_by(MODE, ONE_HOST), ""),
            Query(summed("gpu:power:watts", MODE, ONE_HOST), ""),
        ],
        description="One row per host, those with critical alerts first. Click a heading to sort, a host to open its dashboard.",
        width=24,
        height=8,
        columns={
            "instance": Column(heading="Host", link=link_to_host("host")),
            "Value #B": Column(heading="Critical alerts", thresholds=RED_FROM_ONE),
            "Value #A": Column(heading="Missing GPUs", thresholds=RED_FROM_ONE),
            "Value #F": Column(heading="Highest temperature", unit="celsius", thresholds=parts.TEMPERATURE),
            "Value #G": Column(heading="Throttled GPUs", thresholds=YELLOW_FROM_ONE),
            "Value #C": Column(heading="GPU utilization", unit="percentunit"),
            "Value #D": Column(heading="GPU memory used", unit="percentunit"),
            "Value #E": Column(heading="GPU memory free", unit="bytes"),
            "Value #H": Column(heading="GPU power", unit="watt"),
        },
        sort_by="Critical alerts",
        if_none="no data",
    )


def _spread(title: str, series: str, description: str, **options: Any) -> Any:
    return time_series(
        title,
        [Query(q.quantile(share, series, MODE), words) for share, words in _QUANTILES.items()],
        description=description,
        fill=0,
        width=12,
        **options,
    )


def _use() -> tuple[Any, ...]:
    return (
        _spread(
            "GPU utilization percentiles",
            "gpu_utilization:ratio",
            "Distribution of GPU utilization over the GPUs. A wide spread means uneven load, or a job that hangs.",
            unit="percentunit",
            thresholds=NO_THRESHOLDS,
            most=1,
        ),
        time_series(
            "GPU power",
            [
                Query(q.total("gpu_power:watts", MODE), "power draw"),
                Limit(q.total("gpu_power_limit:watts", MODE), "power limit"),
            ],
            description="Total power draw of the GPUs. The dashed line is the sum of their power limits.",
            unit="watt",
            thresholds=NO_THRESHOLDS,
            fill=30,
            width=12,
        ),
    )


def _health() -> tuple[Any, ...]:
    return (
        time_series(
            "GPU temperature, maximum and median",
            [
                Query(q.quantile(1, "gpu_temperature:celsius", MODE), "max {{exporter_mode}}"),
                Query(q.quantile(0.5, "gpu_temperature:celsius", MODE), "p50 {{exporter_mode}}"),
            ],
            description="Hottest GPU and median. If both rise, check the room; if only the maximum rises, that GPU or its host.",
            unit="celsius",
            thresholds=parts.TEMPERATURE,
            fill=0,
            width=12,
            usual_most=parts.USUAL_HOTTEST_C,
        ),
        time_series(
            "GPUs by clock throttle reason",
            [Query(q.throttled_by_reason(MODE), "{{reason}}")],
            description="GPUs with reduced clocks. A SW power cap is normal under full load; thermal slowdown and power brake "
            "are not.",
            unit="short",
            thresholds=NO_THRESHOLDS,
            fill=0,
            width=12,
            if_none=NONE_REPORTED,
        ),
        log_counts(
            "XIDs by host",
            Query(health.lines_by_host(MODE), "{{instance}}"),
            description="The ten hosts with the most XID log lines. A single host points to its hardware, many hosts to a job.",
            width=12,
            if_none=NONE,
        ),
        rows(
            "Models, drivers and exporters",
            [Query(q.builds(MODE), "")],
            description="Number of GPUs by model, driver and exporter. Two driver versions are a rollout in progress, or a host "
            "that was missed.",
            width=12,
            columns={
                "cluster": Column(heading="Cluster"),
                "model": Column(heading="Model"),
                "driver_version": Column(heading="Driver"),
                "exporter_mode": Column(heading="Exporter"),
                "Value": Column(heading="GPUs", width=70),
            },
            sort_by="GPUs",
            if_none="no data",
        ),
        rows(
            "Drift",
            [Query(pipeline.drift(CLUSTER), "")],
            description="Hosts that differ from their last deployment; `pulumi up --refresh` repairs them.",
            width=24,
            height=5,
            columns={
                "instance": Column(heading="Host", link=link_to_host("host")),
                "part": Column(heading="Part"),
                "Value": Column(heading="Differences"),
            },
            sort_by="Differences",
            if_none=NONE,
        ),
    )


def _fabric() -> tuple[Any, ...]:
    return (
        time_series(
            "GPUs by registration with the fabric",
            [
                Query(fabric.registered(MODE), "registered"),
                Query(fabric.not_registered(MODE), "not registered"),
            ],
            description="GPUs that have joined the NVLink fabric of their NVSwitches, and those that should have.",
            unit="short",
            thresholds=NO_THRESHOLDS,
            fill=0,
            width=12,
            if_none="no NVLink fabric, or not reported by this exporter",
        ),
        time_series(
            "Active NVLinks, lowest GPU of each host",
            [Query(fabric.fewest_links(MODE), "{{instance}}")],
            description="The ten hosts whose GPU with the fewest active NVLinks has the least. A100 have 12, H100 and newer 18.",
            unit="short",
            thresholds=NO_THRESHOLDS,
            fill=0,
            width=12,
            if_none="no NVLink",
        ),
    )
