"""XIDs and health: which GPU fails, since when, what does it mean and what is to be done?"""

from __future__ import annotations

from typing import Any

from alerts.xid import CATALOGUE
from dashboards import parts
from dashboards.layout import Row, build, link_to_host
from dashboards.panels import (
    NONE,
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
from dashboards.queries import health as q
from dashboards.queries.common import CLUSTER, HOST, top

_IN_USE = {str(code): xid for code, xid in sorted(CATALOGUE.items()) if not xid.is_retired}
MEANINGS = {code: (xid.meaning, "text") for code, xid in _IN_USE.items()}
ACTIONS = {code: (xid.action.text, "text") for code, xid in _IN_USE.items()}
SEVERITIES = {code: (xid.severity, parts.SEVERITIES.get(xid.severity, ("", "text"))[1]) for code, xid in _IN_USE.items()}
ON_GPU = "{{instance}} GPU {{gpu}}"
# DCGM's own, see gpu:dcgm_health:code.
HEALTH = {0: ("healthy", "green"), 10: ("warns", "yellow"), 20: ("FAILS", "red")}


def dashboard() -> dict[str, Any]:
    return build(
        "xid",
        "GPU fleet / XIDs and health",
        "Errors that NVIDIA's drivers logged, what they mean and ask for, and what the GPUs count against themselves.",
        variables=("datacenter", "cluster", "exporter_mode", "instance"),
        rows=(
            Row("Now", _now()),
            Row("When and where", _when_and_where()),
            Row("Verdicts", _verdicts()),
            Row("Memory", _memory()),
            Row(
                "Lines",
                (
                    log_lines(
                        "XID lines",
                        q.lines(HOST),
                        description="The lines as the kernel wrote them. Open one for its GPU, process id and process.",
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
            description="GPUs with a critical XID within the last ten minutes.",
            unit="short",
            thresholds=RED_FROM_ONE,
            width=6,
        ),
        one_number(
            "Warning XIDs",
            Query(q.firing_xids(CLUSTER, "warning"), "warnings"),
            description="GPUs with an XID that asks to restart a program, or to look, within the last ten minutes.",
            unit="short",
            thresholds=YELLOW_FROM_ONE,
            width=6,
        ),
        one_number(
            "GPUs that need an action",
            Query(q.gpus_that_need_action(HOST), "GPUs"),
            description="GPUs for which the driver asks for a reset, a drain or a reboot.",
            unit="short",
            thresholds=RED_FROM_ONE,
            width=6,
        ),
        one_number(
            "GPUs with lost data",
            Query(q.gpus_with_lost_data(HOST), "GPUs"),
            description="GPUs with uncorrectable memory errors since their driver was loaded.",
            unit="short",
            thresholds=RED_FROM_ONE,
            width=6,
        ),
    )


def _when_and_where() -> tuple[Any, ...]:
    return (
        log_table(
            "What they mean and ask for",
            q.lines_by_gpu(HOST),
            description="XIDs of the time range by GPU and code, with the catalogue's meaning and NVIDIA's action.",
            width=24,
            columns={
                "instance": Column(heading="Host", link=link_to_host("host"), width=150),
                "pci": Column(heading="GPU (PCI)", width=110),
                "xid": Column(heading="XID", width=60),
                "severity": Column(heading="Severity", words=SEVERITIES, width=90),
                "Value #A": Column(heading="Lines", width=60),
                "meaning": Column(heading="Meaning", words=MEANINGS, is_text=True),
                "action": Column(heading="What to do", words=ACTIONS, is_text=True),
                "cluster": Column(heading="Cluster", width=110),
            },
            sort_by="Severity",
            descending=False,  # critical, info, warning
            if_none=NONE,
        ),
        log_counts(
            "XID lines by code",
            Query(q.lines_by_code(HOST), "XID {{xid}}"),
            description="Kernel lines with an XID, by code. Several codes at one moment are mostly one incident.",
            width=12,
            if_none=NONE,
        ),
        log_counts(
            "XID lines by host",
            Query(q.lines_by_host(HOST), "{{instance}}"),
            description="The ten hosts with most XID lines. One host alone points to its hardware, many to a job.",
            width=12,
            if_none=NONE,
        ),
    )


def _verdicts() -> tuple[Any, ...]:
    return (
        states(
            "What the driver asks for",
            Query(q.recovery_actions(HOST), ON_GPU),
            description="The driver's verdict over time, of GPUs that needed something.",
            words=parts.VERDICTS,
            width=12,
            if_none=NONE,
        ),
        states(
            "What DCGM's health watches say",
            Query(q.dcgm_health(HOST), f"{ON_GPU} {{{{health_watch}}}}"),
            description="Watches of DCGM that warn or fail; only dcgm-exporter tells.",
            words=HEALTH,
            width=12,
            if_none=NONE,
        ),
    )


def _memory() -> tuple[Any, ...]:
    return (
        bars(
            "Uncorrectable memory errors",
            Query(top(10, q.ecc_uncorrected(HOST)), ON_GPU),
            description="Since the driver was loaded; a reset of the GPU sets them to 0. The ten GPUs with most.",
            unit="short",
            thresholds=((None, "red"),),
            width=12,
            if_none=NONE,
        ),
        bars(
            "Memory rows replaced",
            Query(top(10, q.row_remaps(HOST)), ON_GPU),
            description="Rows exchanged for spare ones in the GPU's life. A GPU that leads by far is wearing out.",
            unit="short",
            thresholds=((None, "yellow"),),
            width=12,
            if_none=NONE,
        ),
    )
