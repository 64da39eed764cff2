"""Pipeline health: can the other dashboards be trusted? Agents, delivery to Mimir and Loki, lost data, drift."""

from __future__ import annotations

from typing import Any

from dashboards.layout import Row, build, link_to_host
from dashboards.panels import (
    NO_THRESHOLDS,
    NONE,
    RED_FROM_ONE,
    YELLOW_FROM_ONE,
    Column,
    Query,
    Thresholds,
    one_number,
    rows,
    time_series,
)
from dashboards.queries import fleet
from dashboards.queries import pipeline as q
from dashboards.queries.common import CLUSTER

NOT_SCRAPED = "Mimir's own metrics are not scraped"


def dashboard() -> dict[str, Any]:
    return build(
        "pipeline",
        "GPU fleet / Pipeline health",
        "The agents on the hosts and their delivery to Mimir and Loki: silent hosts, delayed and lost data, drift.",
        variables=("datacenter", "cluster"),
        rows=(
            Row("Now", _now()),
            Row("Metrics", _metrics()),
            Row("Logs and agents", _logs_and_agents()),
            Row("Drift of hosts", (_drift(),)),
            Row("Mimir", _mimir(), is_folded=True),
        ),
    )


def _number(title: str, query: str, description: str, thresholds: Thresholds) -> Any:
    shown = Query(query, title)
    return one_number(title, shown, description=description, unit="short", thresholds=thresholds, width=4, has_sparkline=False)


def _course(title: str, query: str, legend: str, description: str, unit: str, if_none: str = "no data") -> Any:
    return time_series(
        title,
        [Query(query, legend)],
        description=description,
        unit=unit,
        thresholds=NO_THRESHOLDS,
        fill=0,
        width=8,
        if_none=if_none,
    )


def _now() -> tuple[Any, ...]:
    return (
        _number("Reporting agents", q.agents(CLUSTER), "Hosts with a reporting Alloy.", NO_THRESHOLDS),
        _number(
            "Silent hosts",
            fleet.missing_hosts(CLUSTER),
            "Hosts of the stack files without a sample in the last five minutes.",
            RED_FROM_ONE,
        ),
        _number("Targets down", q.targets_down(CLUSTER), "Exporters that Alloy cannot scrape.", RED_FROM_ONE),
        _number(
            "Hosts with unreadable GPUs",
            q.hosts_with_unreadable_gpus(CLUSTER),
            "Hosts whose exporter runs but cannot read the GPUs: their GPU panels are empty.",
            RED_FROM_ONE,
        ),
        _number(
            "Drifted hosts",
            q.drifted_hosts(CLUSTER),
            "Hosts that differ from their last deployment.",
            YELLOW_FROM_ONE,
        ),
        _number(
            "Warnings",
            fleet.firing(CLUSTER, "warning"),
            "Firing alerts that can wait until working hours, of all kinds.",
            YELLOW_FROM_ONE,
        ),
    )


def _worst(title: str, record: str, description: str, unit: str, if_none: str = "no data") -> Any:
    return _course(title, q.worst_hosts(record, CLUSTER), "{{instance}}", description, unit, if_none)


def _by_cluster(title: str, record: str, description: str, unit: str) -> Any:
    return _course(title, q.by_cluster(record, CLUSTER), "{{cluster}}", description, unit)


def _metrics() -> tuple[Any, ...]:
    return (
        _worst(
            "Send delay", "instance:metrics_send_delay:seconds_top10", "Delay of metrics sent to Mimir; the ten worst hosts.", "s"
        ),
        _by_cluster("Samples sent", "cluster:samples_sent:rate5m", "Samples per second, by cluster.", "suffix: samples/s"),
        _worst(
            "Samples lost",
            "instance:samples_lost:rate5m_top10",
            "Samples per second that Mimir rejected; the ten worst hosts.",
            "suffix: samples/s",
        ),
        _worst(
            "Write-ahead log size",
            "instance:agent_wal:bytes_top10",
            "Size of Alloy's write-ahead log on disk; the ten largest. It grows while Mimir is unreachable.",
            "bytes",
        ),
        _worst(
            "Series per host",
            "instance:series_sent:count_top10",
            "Active series that a host sends, which determine the cost of Mimir; the ten highest.",
            "short",
        ),
        _worst(
            "Age of GPU readings",
            "instance:gpu_collection_age:seconds_top10",
            "Time since the GPUs were last read, for exporters that report it; the ten oldest.",
            "s",
            if_none="not reported by dcgm-exporter and AMD's exporter",
        ),
    )


def _logs_and_agents() -> tuple[Any, ...]:
    return (
        _by_cluster("Log lines sent", "cluster:log_lines_sent:rate5m", "Log lines per second, by cluster.", "suffix: lines/s"),
        _worst(
            "Log lines lost",
            "instance:log_lines_lost:rate5m_top10",
            "Log lines per second that Alloy dropped; the ten worst hosts.",
            "suffix: lines/s",
        ),
        _worst(
            "Log batches retried",
            "instance:log_batches_retried:per_minute_top10",
            "Log batches per minute that had to be retried, so that lines are delayed; the ten worst hosts.",
            "suffix: batches/min",
        ),
        _worst(
            "Unhealthy components",
            "instance:agent_components_unhealthy:count_top10",
            "Unhealthy components of Alloy; the ten worst hosts.",
            "short",
        ),
        _worst("Agent memory", "instance:agent_memory:bytes_top10", "Resident memory of Alloy; the ten highest.", "bytes"),
        _worst("Agent CPU", "instance:agent_cpu:cores_top10", "CPU cores used by Alloy; the ten highest.", "suffix: cores"),
    )


def _drift() -> Any:
    return rows(
        "Drift",
        [Query(q.drift(CLUSTER), "")],
        description="Parts that differ from the last deployment, with the number of differences; `pulumi up --refresh` repairs "
        "them. At most fifty.",
        width=24,
        columns={
            "datacenter": Column(heading="Datacenter"),
            "cluster": Column(heading="Cluster"),
            "instance": Column(heading="Host", link=link_to_host("host")),
            "part": Column(heading="Part"),
            "Value": Column(heading="Differences"),
        },
        sort_by="Differences",
        if_none=NONE,
    )


def _mimir() -> tuple[Any, ...]:
    return (
        _course(
            "Failed rule evaluations",
            q.rule_failures(),
            "{{rule_group}}",
            "By rule group. Alerts of a failing group do not fire.",
            "short",
            if_none=NOT_SCRAPED,
        ),
        _course("In-memory series", q.series_in_memory(), "series", "Of all tenants and hosts.", "short", if_none=NOT_SCRAPED),
    )
