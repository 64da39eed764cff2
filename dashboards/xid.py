"""XIDs and health: which GPU fails, since when, what does the error mean and which action is recommended?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from alerts import amd
from alerts.sxid import CATALOGUE as SXIDS
from alerts.xid import CATALOGUE, LINES, Severity
from dashboards import parts
from dashboards.layout import Row, build, link_to_host
from dashboards.panels import (
    HEIGHT,
    NO_THRESHOLDS,
    NONE,
    NONE_REPORTED,
    RED_FROM_ONE,
    YELLOW_FROM_ONE,
    Column,
    Query,
    bars,
    log_counts,
    log_lines,
    log_table,
    one_number,
    states,
)
from dashboards.queries import fabric
from dashboards.queries import health as q
from dashboards.queries.common import CLUSTER, HOST, NAME, top

Words = Mapping[str, tuple[str, str]]


def _severity(severity: Severity) -> tuple[str, str]:
    """Its name and colour."""
    return severity, parts.SEVERITIES.get(severity, ("", "text"))[1]


MEANINGS = {str(code): (xid.meaning, "text") for code, xid in sorted(CATALOGUE.items())}
ACTIONS = {str(code): (xid.action.text, "text") for code, xid in sorted(CATALOGUE.items())}
SEVERITIES = {str(code): _severity(xid.severity) for code, xid in sorted(CATALOGUE.items())}
# Where the line decides, as in the alert; keys as in the query.
_BY_LINE = {f"{line.code} {line.kind}".rstrip(): line for line in LINES}
ACTIONS |= {verdict: (line.action.text, "text") for verdict, line in _BY_LINE.items()}
SEVERITIES |= {verdict: _severity(line.severity) for verdict, line in _BY_LINE.items()}
# As GpuXidUnknown.
SEVERITIES[q.UNKNOWN] = _severity(Severity.WARNING)
ACTIONS[q.UNKNOWN] = ("Look the code up in NVIDIA's Xid catalogue for this driver.", "text")
AMD_MEANINGS = {event.name: (event.meaning, "text") for event in amd.EVENTS}
AMD_ACTIONS = {event.name: (amd.ACTION_TEXTS[event.action], "text") for event in amd.EVENTS}
AMD_SEVERITIES = {event.name: _severity(event.severity) for event in amd.EVENTS}
SXID_MEANINGS = {str(code): (f"{sxid.name}: {sxid.meaning}", "text") for code, sxid in SXIDS.items()}
SXID_ACTIONS = {str(code): (sxid.action.text, "text") for code, sxid in SXIDS.items()}
IN_CLUSTER = {"cluster": Column(heading="Cluster", width=110)}
ON_GPU = "{{instance}} GPU {{gpu}}"
# DCGM's values, see gpu:dcgm_health:code.
HEALTH = {0: ("healthy", "green"), 10: ("warning", "yellow"), 20: ("FAILURE", "red")}


def dashboard() -> dict[str, Any]:
    return build(
        "xid",
        "GPU fleet / XIDs and health",
        "XIDs of NVIDIA's driver and events of AMD's, with their meaning and recommended action, and the health of the GPUs.",
        variables=("datacenter", "cluster", "exporter_mode", "instance"),
        rows=(
            Row("Now", _now()),
            Row("XIDs", _xids()),
            Row("AMD GPUs", _amd_events()),
            Row("NVSwitches and network adapters", _switches()),
            Row("GPU health", _gpu_health()),
            Row("Memory errors", _memory()),
            Row("Reliability", _reliability()),
            Row(
                "Logs",
                (
                    log_lines(
                        "XID log lines",
                        q.lines(HOST),
                        description="Kernel log lines with an XID. Expand one for its GPU, process ID and process.",
                        width=24,
                        if_none=NONE,
                    ),
                ),
            ),
        ),
    )


def _now() -> tuple[Any, ...]:
    return (
        one_number(
            "Critical XIDs",
            Query(q.firing_xids(CLUSTER, "critical"), "critical"),
            description="GPUs with an open incident of severity critical: an XID, or an event of AMD's driver.",
            unit="short",
            thresholds=RED_FROM_ONE,
            width=6,
        ),
        one_number(
            "Warning XIDs",
            Query(q.firing_xids(CLUSTER, "warning"), "warnings"),
            description="GPUs with an open incident of severity warning: restart a program, or investigate.",
            unit="short",
            thresholds=YELLOW_FROM_ONE,
            width=6,
        ),
        one_number(
            "GPUs with a recovery action",
            Query(q.gpus_with_recovery_action(HOST, NAME), "GPUs"),
            description="GPUs for which the driver requires a reset, a drain or a reboot, also those that the exporter lost.",
            unit="short",
            thresholds=RED_FROM_ONE,
            width=6,
            has_sparkline=False,
        ),
        one_number(
            "GPUs with uncorrectable errors",
            Query(q.gpus_with_uncorrectable_errors(HOST), "GPUs"),
            description="GPUs with uncorrectable ECC errors since the driver was loaded.",
            unit="short",
            thresholds=RED_FROM_ONE,
            width=6,
            has_sparkline=False,
        ),
    )


def _recommended(
    title: str,
    query: str,
    *,
    description: str,
    width: int,
    code: Mapping[str, Column],
    meanings: Words,
    actions: Words,
    place: Mapping[str, Column],
) -> Any:
    """Codes with what they mean and what to do, the gravest first: their severities sort in that order."""
    return log_table(
        title,
        query,
        description=description,
        width=width,
        columns={
            "instance": Column(heading="Host", link=link_to_host("host"), width=150),
            **code,
            "Value #A": Column(heading="Log lines", width=60),
            "meaning": Column(heading="Meaning", words=meanings, is_text=True),
            "action": Column(heading="Recommended action", words=actions, is_text=True),
            **place,
        },
        sort_by="Severity",
        descending=False,  # critical, info, warning; Fatal, Non-fatal
        if_none=NONE,
    )


def _xids() -> tuple[Any, ...]:
    return (
        _recommended(
            "XIDs and recommended actions",
            q.lines_by_gpu(HOST),
            description="XIDs of the selected time range by GPU and code, with their meaning and the recommended action. "
            "The severity and action of 144 to 150 and 154 are those of the line.",
            width=24,
            code={
                "pci": Column(heading="GPU (PCI)", width=110),
                "xid": Column(heading="XID", width=60),
                "severity": Column(heading="Severity", words=SEVERITIES, width=90),
            },
            meanings=MEANINGS,
            actions=ACTIONS,
            place=IN_CLUSTER,
        ),
        log_counts(
            "XIDs by code",
            Query(q.lines_by_code(HOST), "XID {{xid}}"),
            description="Kernel log lines with an XID, by code. Several codes at the same time are usually one incident.",
            width=12,
            if_none=NONE,
        ),
        log_counts(
            "XIDs by host",
            Query(q.lines_by_host(HOST), "{{instance}}"),
            description="The ten hosts with the most XID log lines. A single host points to its hardware, many hosts to a job.",
            width=12,
            if_none=NONE,
        ),
    )


def _amd_events() -> tuple[Any, ...]:
    return (
        _recommended(
            "AMD driver events and recommended actions",
            q.amd_events_by_gpu(HOST),
            description="What AMD's driver logged in the selected time range, by GPU: memory errors (RAS), resets, page faults.",
            width=16,
            code={
                "pci": Column(heading="GPU (PCI)", width=110),
                "event": Column(heading="Event", width=150),
                "severity": Column(heading="Severity", words=AMD_SEVERITIES, width=90),
            },
            meanings=AMD_MEANINGS,
            actions=AMD_ACTIONS,
            place=IN_CLUSTER,
        ),
        log_counts(
            "AMD driver events",
            Query(q.amd_events_by_kind(HOST), "{{event}}"),
            description="Kernel log lines of AMD's driver by event. Several events at the same time are usually one incident.",
            width=8,
            if_none=NONE,
        ),
    )


def _switches() -> tuple[Any, ...]:
    return (
        _recommended(
            "SXids and recommended actions",
            fabric.sxids_by_switch(HOST),
            description="Errors of NVSwitches in the selected time range, by code, with the severity in their line.",
            width=16,
            code={
                "pci": Column(heading="NVSwitch (PCI)", width=120),
                "sxid": Column(heading="SXid", width=70),
                "sxid_severity": Column(heading="Severity", width=90),
            },
            meanings=SXID_MEANINGS,
            actions=SXID_ACTIONS,
            place=IN_CLUSTER,
        ),
        log_counts(
            "Network adapter errors",
            Query(fabric.adapter_events(HOST), "{{instance}} {{nic_event}}"),
            description="Errors of InfiniBand, RoCE and EFA adapters in the kernel log, by kind.",
            width=8,
            if_none=NONE,
        ),
    )


def _gpu_health() -> tuple[Any, ...]:
    return (
        states(
            "Recovery action",
            Query(q.recovery_actions(HOST), ON_GPU),
            description="The driver's recovery action over time, while a GPU has one.",
            words=parts.RECOVERY_ACTIONS,
            width=12,
            if_none=NONE_REPORTED,
        ),
        states(
            "DCGM health watches",
            Query(q.dcgm_health(HOST), f"{ON_GPU} {{{{health_watch}}}}"),
            description="Health watches of DCGM with a warning or failure; only from dcgm-exporter.",
            words=HEALTH,
            width=12,
            if_none=NONE_REPORTED,
        ),
    )


def _memory() -> tuple[Any, ...]:
    return (
        bars(
            "Uncorrectable ECC errors",
            Query(top(10, q.ecc_uncorrected(HOST)), ON_GPU),
            description="Since the driver was loaded; a GPU reset sets them to 0. The ten GPUs with the most errors.",
            unit="short",
            thresholds=((None, "red"),),
            width=12,
            if_none=NONE_REPORTED,
        ),
        bars(
            "Remapped rows",
            Query(top(10, q.row_remaps(HOST)), ON_GPU),
            description="Memory rows remapped to spare rows in the GPU's lifetime. A GPU with far more than the others is "
            "wearing out.",
            unit="short",
            thresholds=((None, "yellow"),),
            width=12,
            if_none=NONE_REPORTED,
        ),
    )


def _reliability() -> tuple[Any, ...]:
    return (
        one_number(
            "Critical GPU alerts",
            Query(q.critical_alerts_of_gpus(NAME), "alerts"),
            description="Critical alerts about GPUs that became active in the selected time range; select weeks or months above.",
            unit="short",
            thresholds=NO_THRESHOLDS,
            width=6,
            height=HEIGHT,
            has_sparkline=False,
        ),
        one_number(
            "GPU days between critical alerts",
            Query(q.gpu_days_between_critical_alerts(NAME), "GPU days"),
            description="Number of GPUs times the selected days, divided by their critical alerts: mean time between failures.",
            unit="d",
            thresholds=NO_THRESHOLDS,
            width=6,
            height=HEIGHT,
            has_sparkline=False,
            if_none="no critical alert",
        ),
        bars(
            "GPUs with the most critical alerts",
            Query(q.critical_alerts_by_gpu(NAME), "{{instance}} GPU {{gpu}}{{pci}}"),
            description="Critical alerts per GPU in the selected time range. Test or replace a GPU that has several in weeks.",
            unit="short",
            thresholds=((None, "red"),),
            width=12,
            if_none=NONE,
        ),
        bars(
            "Critical GPU alerts by kind",
            Query(q.critical_alerts_by_kind(NAME), "{{alertname}} {{xid}}{{event}}"),
            description="Critical alerts about GPUs in the selected time range, by alert and XID or event.",
            unit="short",
            thresholds=((None, "orange"),),
            width=24,
            if_none=NONE,
        ),
    )
