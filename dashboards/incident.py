"""One host's incident: what happened, in order, from every source. Alerts about a GPU or the fabric link to it."""

from __future__ import annotations

from typing import Any

from dashboards import parts
from dashboards.layout import Row, build
from dashboards.panels import (
    NO_THRESHOLDS,
    NONE,
    NOT_REPORTED,
    Column,
    Query,
    log_lines,
    rows,
    states,
    time_series,
)
from dashboards.queries import health
from dashboards.queries import incident as q
from dashboards.queries.common import NAME, per_gpu, top

ON_GPU = "{{instance}} GPU {{gpu}}"
SEVERITY = {3: ("critical", "red"), 2: ("warning", "orange"), 1: ("info", "blue")}


def dashboard() -> dict[str, Any]:
    return build(
        "incident",
        "GPU fleet / Incident",
        "What happened to one host and its GPUs, in order, from every source. Notifications open it at the time of the alert.",
        variables=("datacenter", "cluster", "instance"),
        one_host_first=True,
        rows=(
            Row("Now", _now()),
            Row("In order", _in_order()),
            Row("Over time", _over_time()),
            Row("Load before and after", _load()),
            Row("Containers", (_container_errors(),), is_folded=True),
        ),
    )


def _now() -> tuple[Any, ...]:
    return (
        parts.lost_gpus(NAME),
        parts.host_state(NAME, 6),
        parts.gpus_of(NAME, 6),
        parts.critical_alerts(NAME, 6),
        parts.warnings(NAME, 6),
        parts.firing_alerts(NAME, has_cluster=False, height=5),
        parts.jobs(NAME, width=24, height=5),
    )


def _in_order() -> tuple[Any, ...]:
    return (
        rows(
            "Events",
            [Query(q.events(NAME), "")],
            description="Every event in the selected time range, oldest first, with what reported it. One that "
            "repeats has its last time; a minute is the precision of what is no line of the log.",
            width=24,
            columns={
                "Value": Column(heading="Time", unit="dateTimeAsIso", width=170),
                "reported_by": Column(heading="Reported by", width=110),
                "what": Column(heading="Event", is_text=True),
                "gpu": Column(heading="GPU", width=60),
                "pci": Column(heading="GPU (PCI)", width=110),
                "xid": Column(heading="XID", words=parts.XIDS, is_text=True, width=230),
                "severity": Column(heading="Severity", words=parts.SEVERITIES, width=90),
                "detail": Column(heading="Detail", is_text=True),
            },
            sort_by="Time",
            descending=False,
            if_none=NONE,
            height=8,
        ),
        log_lines(
            "Kernel log, oldest first",
            health.kernel_lines(NAME),
            description="Kernel log lines about GPUs, links, memory and disks. What precedes an XID often explains it.",
            width=24,
            if_none=NONE,
            newest_first=False,
        ),
    )


def _over_time() -> tuple[Any, ...]:
    return (
        states(
            "Firing alerts over time",
            Query(q.alerts_over_time(NAME), "{{alertname}} {{xid}}{{event}} {{gpu}}{{pci}}"),
            description="When each alert about the host fired.",
            words=SEVERITY,
            width=12,
            if_none=NONE,
        ),
        states(
            "Incidents of GPUs",
            Query(q.verdicts_over_time(NAME), "{{code}} {{of}}"),
            description="The gravest XID or event of each GPU with an open incident, until the host shows that it is over.",
            words={1: ("critical", "red"), 0: ("warning", "orange")},
            width=12,
            if_none=NONE,
        ),
        states(
            "Recovery action by GPU",
            Query(health.recovery_actions(NAME), ON_GPU),
            description="The driver's recovery action, of GPUs that had one in the selected time range.",
            words=parts.RECOVERY_ACTIONS,
            width=12,
            if_none="of no listed GPU; a lost one cannot report it",
        ),
        states(
            "Exporters",
            Query(q.scrapes_over_time(NAME), "{{job}}"),
            description="Whether Alloy could scrape each exporter. A gap: no data, so the host or its network was down.",
            words={1: ("up", "green"), 0: ("DOWN", "red")},
            width=12,
            if_none="no data",
        ),
        states(
            "GPUs listed by the exporter",
            Query(q.gpus_over_time(NAME), ON_GPU),
            description="A gap: the exporter did not list the GPU. If all end at once, the driver or the exporter failed.",
            words={1: ("listed", "green")},
            width=12,
            if_none="no data",
        ),
        time_series(
            "Uncorrectable errors of GPU memory",
            [Query(q.uncorrected_errors(NAME), ON_GPU)],
            description="ECC errors since the driver was loaded; a reset of the GPU sets them to 0.",
            unit="short",
            thresholds=NO_THRESHOLDS,
            fill=0,
            width=12,
            if_none=NOT_REPORTED,
        ),
    )


def _load() -> tuple[Any, ...]:
    return tuple(
        time_series(
            title,
            [Query(top(16, per_gpu(series, NAME)), ON_GPU)],
            description=description,
            unit=unit,
            thresholds=NO_THRESHOLDS,
            fill=0,
            width=8,
            if_none=NOT_REPORTED,
        )
        for title, series, unit, description in (
            ("Temperature", "gpu:temperature:celsius", "celsius", "Of the GPU core. A steep rise points to cooling."),
            ("Power", "gpu:power:watts", "watt", "Power draw. A fall to idle is the end of the job."),
            ("Utilization", "gpu:utilization:ratio", "percentunit", "Share of time in which a kernel was running."),
        )
    )


def _container_errors() -> Any:
    return log_lines(
        "Error lines of containers",
        q.container_errors(NAME),
        description="Lines of Docker, Podman or pods on this host with an error: what the job noticed.",
        width=24,
        if_none=NONE,
    )
