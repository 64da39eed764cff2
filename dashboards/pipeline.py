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


def _metrics() -> tuple[Any, ...]:
    return (
        _course("Send delay", q.send_delay(CLUSTER), "{{instance}}", "Delay of metrics sent to Mimir; the ten worst hosts.", "s"),
        _course("Samples sent", q.samples_sent(CLUSTER), "{{cluster}}", "Samples per second, by cluster.", "suffix: samples/s"),
        _course(
            "Samples lost",
            q.samples_lost(CLUSTER),
            "{{instance}}",
            "Samples per second that Mimir rejected; the ten worst hosts.",
            "suffix: samples/s",
        ),
        _course(
            "Write-ahead log size",
            q.wal_size(CLUSTER),
            "{{instance}}",
            "Size of Alloy's write-ahead log on disk; the ten largest. It grows while Mimir is unreachable.",
            "bytes",
        ),
        _course(
            "Series per host",
            q.series_per_host(CLUSTER),
            "{{instance}}",
            "Active series that a host sends, which determine the cost of Mimir; the ten highest.",
            "short",
        ),
        _course(
            "Age of GPU readings",
            q.data_age(CLUSTER),
            "{{instance}}",
            "Time since the GPUs were last read, for exporters that report it; the ten oldest.",
            "s",
            if_none="not reported by dcgm-exporter and AMD's exporter",
        ),
    )


def _logs_and_agents() -> tuple[Any, ...]:
    return (
        _course(
            "Log lines sent", q.log_lines_sent(CLUSTER), "{{cluster}}", "Log lines per second, by cluster.", "suffix: lines/s"
        ),
        _course(
            "Log lines lost",
            q.log_lines_lost(CLUSTER),
            "{{instance}}",
            "Log lines per second that Alloy dropped; the ten worst hosts.",
            "suffix: lines/s",
        ),
        _course(
            "Log batches retried",
            q.log_retries(CLUSTER),
            "{{instance}}",
            "Log batches per minute that had to be retried, so that lines are delayed; the ten worst hosts.",
            "suffix: batches/min",
        ),
        _course(
            "Unhealthy components",
            q.unhealthy_components(CLUSTER),
            "{{instance}}",
            "Unhealthy components of Alloy; the ten worst hosts.",
            "short",
        ),
        _course(
            "Agent memory",
            q.agent_memory(CLUSTER),
            "{{instance}}",
            "Resident memory of Alloy; the ten highest.",
            "bytes",
        ),
        _course(
            "Agent CPU",
            q.agent_cpu(CLUSTER),
            "{{instance}}",
            "CPU cores used by Alloy; the ten highest.",
            "suffix: cores",
        ),
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
