"""Pipeline health: can what the other dashboards show be trusted? Agents, their way to Mimir and Loki, what is lost, drift."""

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

NOT_SCRAPED = "Mimir's own metrics are not collected"


def dashboard() -> dict[str, Any]:
    return build(
        "pipeline",
        "GPU fleet / Pipeline health",
        "The agents on the hosts and their way to Mimir and Loki: what is silent, late, lost or drifted.",
        variables=("datacenter", "cluster"),
        rows=(
            Row("Now", _now()),
            Row("Metrics", _metrics()),
            Row("Logs and agents", _logs_and_agents()),
            Row("Drift from the stack", (_drift(),)),
            Row("Mimir itself", _mimir(), is_folded=True),
        ),
    )


def _number(title: str, query: str, description: str, thresholds: Thresholds) -> Any:
    return one_number(title, Query(query, title), description=description, unit="short", thresholds=thresholds, width=4)


def _course(title: str, query: str, legend: str, description: str, unit: str, if_none: str = "nothing reports") -> Any:
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
        _number("Agents", q.agents(CLUSTER), "Hosts whose Alloy reports.", NO_THRESHOLDS),
        _number(
            "Hosts not heard of",
            fleet.missing_hosts(CLUSTER),
            "Hosts of the stack files without a sample in the last five minutes.",
            RED_FROM_ONE,
        ),
        _number("Targets down", q.targets_down(CLUSTER), "Exporters that do not answer their Alloy.", RED_FROM_ONE),
        _number(
            "GPUs not read",
            q.gpus_not_read(CLUSTER),
            "Hosts whose exporter runs and cannot read the GPUs: their GPU panels are empty.",
            RED_FROM_ONE,
        ),
        _number(
            "Drifted hosts",
            q.drifted_hosts(CLUSTER),
            "Hosts on which something differs from what the last `up` left.",
            YELLOW_FROM_ONE,
        ),
        _number("Warnings", fleet.firing(CLUSTER, "warning"), "Alerts for working hours, of all kinds.", YELLOW_FROM_ONE),
    )


def _metrics() -> tuple[Any, ...]:
    return (
        _course("Delay", q.send_delay(CLUSTER), "{{instance}}", "How late metrics leave; the ten worst hosts.", "s"),
        _course("Samples sent", q.samples_sent(CLUSTER), "{{cluster}}", "Samples a second, by cluster.", "suffix: samples/s"),
        _course(
            "Samples lost",
            q.samples_lost(CLUSTER),
            "{{instance}}",
            "Samples a second that Mimir refused; the ten worst hosts.",
            "suffix: samples/s",
        ),
        _course(
            "Kept on disk",
            q.wal_size(CLUSTER),
            "{{instance}}",
            "Samples that Alloy keeps on disk for the time Mimir is away; the ten largest. It grows while nothing can be sent.",
            "bytes",
        ),
        _course(
            "Series per host",
            q.series_per_host(CLUSTER),
            "{{instance}}",
            "Series that a host sends, which is what Mimir costs; the ten with most.",
            "short",
        ),
        _course(
            "Age of GPU readings",
            q.data_age(CLUSTER),
            "{{instance}}",
            "How long ago the GPUs were last read, of exporters that tell; the ten oldest.",
            "s",
            if_none="dcgm-exporter and AMD's do not tell",
        ),
    )


def _logs_and_agents() -> tuple[Any, ...]:
    return (
        _course("Lines sent", q.log_lines_sent(CLUSTER), "{{cluster}}", "Log lines a second, by cluster.", "suffix: lines/s"),
        _course(
            "Lines lost",
            q.log_lines_lost(CLUSTER),
            "{{instance}}",
            "Log lines a second that Alloy gave up on; the ten worst hosts.",
            "suffix: lines/s",
        ),
        _course(
            "Attempts repeated",
            q.log_retries(CLUSTER),
            "{{instance}}",
            "Batches a minute that Loki did not take at once: lines come late; the ten worst hosts.",
            "suffix: batches/min",
        ),
        _course(
            "Components not healthy",
            q.unhealthy_components(CLUSTER),
            "{{instance}}",
            "Parts of Alloy that do not work; the ten worst hosts.",
            "short",
        ),
        _course(
            "Memory of the agent",
            q.agent_memory(CLUSTER),
            "{{instance}}",
            "Memory that Alloy takes from the host; the ten largest.",
            "bytes",
        ),
        _course(
            "CPU of the agent",
            q.agent_cpu(CLUSTER),
            "{{instance}}",
            "Cores that Alloy keeps busy; the ten with most.",
            "suffix: cores",
        ),
    )


def _drift() -> Any:
    return rows(
        "Drift",
        [Query(q.drift(CLUSTER), "")],
        description="Parts that differ from what the last `up` left, and how often; the next one repairs them. At most fifty.",
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
            "Rule evaluations that failed",
            q.rule_failures(),
            "{{rule_group}}",
            "By rule group. An alert of such a group does not fire, whatever happens.",
            "short",
            if_none=NOT_SCRAPED,
        ),
        _course("Series in memory", q.series_in_memory(), "series", "Of all tenants and hosts.", "short", if_none=NOT_SCRAPED),
    )
