"""One cluster: which of its hosts is missing, hot, held back or idle?"""

from __future__ import annotations

from typing import Any

from dashboards import parts
from dashboards.layout import Row, build, link_to_host
from dashboards.panels import (
    NO_THRESHOLDS,
    NONE,
    RED_FROM_ONE,
    YELLOW_FROM_ONE,
    Column,
    Limit,
    Query,
    log_counts,
    rows,
    time_series,
)
from dashboards.queries import fleet as q
from dashboards.queries import health, pipeline
from dashboards.queries.common import CLUSTER, MODE, ONE_HOST, averaged, highest, per_gpu, summed

_QUANTILES = {0.1: "a tenth of the GPUs is below", 0.5: "half of the GPUs is below", 0.9: "nine tenths are below"}


def dashboard() -> dict[str, Any]:
    return build(
        "cluster",
        "GPU fleet / Cluster",
        "The hosts of a cluster in a table, and how its GPUs are used, heated and held back as a whole.",
        variables=("datacenter", "cluster", "exporter_mode"),
        rows=(
            Row("Now", _now()),
            Row("Hosts and alerts", (_hosts(), parts.firing_alerts(CLUSTER, has_cluster=False))),
            Row("Use", _use()),
            Row("Health", _health()),
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
        "Host by host",
        [
            Query(q.missing_gpus_by(CLUSTER, ONE_HOST), ""),
            Query(q.firing_by(CLUSTER, "critical", ONE_HOST), ""),
            Query(averaged("gpu:utilization:ratio", MODE, ONE_HOST), ""),
            Query(q.memory_used_ratio(MODE, ONE_HOST), ""),
            Query(summed("gpu:memory_free:bytes", MODE, ONE_HOST), ""),
            Query(highest("gpu:temperature:celsius", MODE, ONE_HOST), ""),
            Query(q.held_back_by(MODE, ONE_HOST), ""),
            Query(summed("gpu:power:watts", MODE, ONE_HOST), ""),
        ],
        description="One row per host, those with critical alerts first; a click on a heading sorts, one on a host opens it.",
        width=24,
        height=8,
        columns={
            "instance": Column(heading="Host", link=link_to_host("host")),
            "Value #B": Column(heading="Critical alerts", thresholds=RED_FROM_ONE),
            "Value #A": Column(heading="GPUs missing", thresholds=RED_FROM_ONE),
            "Value #F": Column(heading="Hottest", unit="celsius", thresholds=parts.TEMPERATURE),
            "Value #G": Column(heading="GPUs held back", thresholds=YELLOW_FROM_ONE),
            "Value #C": Column(heading="Utilisation", unit="percentunit"),
            "Value #D": Column(heading="Memory in use", unit="percentunit"),
            "Value #E": Column(heading="Memory free", unit="bytes"),
            "Value #H": Column(heading="Power", unit="watt"),
        },
        sort_by="Critical alerts",
        if_none="nothing reports",
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
            "Spread of the utilisation",
            "gpu:utilization:ratio",
            "How the GPUs' utilisations lie apart. Lines far from each other: work is spread unevenly, or a job hangs.",
            unit="percentunit",
            thresholds=NO_THRESHOLDS,
            most=1,
        ),
        time_series(
            "Power of all GPUs",
            [
                Query(f"sum({per_gpu('gpu:power:watts', MODE)})", "drawn"),
                Limit(f"sum({per_gpu('gpu:power_limit:watts', MODE)})", "limit"),
            ],
            description="Power that the GPUs draw together; the dashed line is what they may draw.",
            unit="watt",
            thresholds=NO_THRESHOLDS,
            fill=30,
            width=12,
        ),
    )


def _health() -> tuple[Any, ...]:
    return (
        time_series(
            "Spread of the temperature",
            [
                Query(f"max({per_gpu('gpu:temperature:celsius', MODE)})", "hottest"),
                Query(q.quantile(0.5, "gpu:temperature:celsius", MODE), "half of the GPUs is below"),
            ],
            description="The hottest GPU beside the middle one. Both rise: the room. One alone: that GPU or its host.",
            unit="celsius",
            thresholds=parts.TEMPERATURE,
            fill=0,
            width=12,
            usual_most=parts.USUAL_HOTTEST_C,
        ),
        time_series(
            "GPUs held back, by reason",
            [Query(q.held_back_by_reason(MODE), "{{reason}}")],
            description="GPUs whose clocks are held back. Under full load a power cap is usual; heat and power brake are not.",
            unit="short",
            thresholds=NO_THRESHOLDS,
            fill=0,
            width=12,
            if_none="none, or not told by this exporter",
        ),
        log_counts(
            "XID lines by host",
            Query(health.lines_by_host(MODE), "{{instance}}"),
            description="The ten hosts with most XID lines. One host alone points to its hardware, many to a job.",
            width=12,
            if_none=NONE,
        ),
        rows(
            "Models, drivers and exporters",
            [Query(q.builds(MODE), "")],
            description="GPUs of each kind. Two drivers in one cluster are a rollout, or a forgotten host.",
            width=12,
            columns={
                "cluster": Column(heading="Cluster"),
                "model": Column(heading="Model"),
                "driver_version": Column(heading="Driver"),
                "exporter_mode": Column(heading="Exporter"),
                "Value": Column(heading="GPUs", width=70),
            },
            sort_by="GPUs",
            if_none="nothing reports",
        ),
        rows(
            "Drift",
            [Query(pipeline.drift(CLUSTER), "")],
            description="Hosts on which something differs from what the last `up` left; the next one repairs it.",
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
