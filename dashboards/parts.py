"""Panels that several dashboards have in common: what is missing and what fires."""

from __future__ import annotations

from typing import Any, Final

from dashboards.layout import link_to, link_to_host
from dashboards.panels import HEIGHT, NONE, RED_FROM_ONE, YELLOW_FROM_ONE, Column, Query, count_of, one_number, rows
from dashboards.queries import fleet as q
from dashboards.queries.common import complete, short

# Those of the textfile guide (seed 001); at what a GPU really slows down, nvidia-smi -q -d TEMPERATURE tells.
TEMPERATURE: Final = ((None, "green"), (70, "yellow"), (80, "orange"), (85, "red"))
# Likewise. Red is no fault here: it says that the GPU is full.
UTILIZATION: Final = ((None, "green"), (0.70, "yellow"), (0.90, "red"))
DISK: Final = ((None, "green"), (0.70, "yellow"), (0.85, "red"))
USUAL_HOTTEST_C: Final = 90
SEVERITIES: Final = {"critical": ("critical", "red"), "warning": ("warning", "yellow")}
# What the driver asks for, see gpu:recovery_action:code.
VERDICTS: Final = {
    0: ("nothing", "green"),
    1: ("reset GPU", "orange"),
    2: ("reboot node", "red"),
    3: ("drain P2P", "yellow"),
    4: ("drain and reset", "red"),
}


def critical_alerts(selector: str, width: int) -> Any:
    return one_number(
        "Critical alerts",
        Query(q.firing(selector, "critical"), "critical"),
        description="Alerts that need somebody now. The table below names them.",
        unit="short",
        thresholds=RED_FROM_ONE,
        width=width,
    )


def warnings(selector: str, width: int) -> Any:
    return one_number(
        "Warnings",
        Query(q.firing(selector, "warning"), "warnings"),
        description="Alerts for working hours.",
        unit="short",
        thresholds=YELLOW_FROM_ONE,
        width=width,
    )


def hosts_of(selector: str, width: int) -> Any:
    now, expected = q.hosts(selector), q.expected_hosts(selector)
    return count_of(
        "Hosts",
        complete=complete(now, expected),
        short=short(now, expected),
        description="Hosts that are heard of, of those that the stack files name. Red: some are silent.",
        width=width,
        link=link_to("cluster", "datacenter", "cluster"),
    )


def gpus_of(selector: str, width: int) -> Any:
    now, expected = q.gpus(selector), q.expected_gpus(selector)
    return count_of(
        "GPUs",
        complete=complete(now, expected),
        short=short(now, expected),
        description="GPUs that report, of those the stack files count, or that were there within six hours. Red: some are lost.",
        width=width,
    )


def firing_alerts(selector: str, *, has_cluster: bool, height: int = HEIGHT) -> Any:
    """`has_cluster`: with columns for datacenter and cluster, where there is more than one."""
    place = {"datacenter": Column(heading="Datacenter"), "cluster": Column(heading="Cluster")} if has_cluster else {}
    return rows(
        "Firing alerts",
        [Query(q.firing_alerts(selector), "")],
        description="One row per alert, critical first. What to do stands in the notification and in the alert's runbook.",
        width=24,
        height=height,
        columns={
            "severity": Column(heading="Severity", words=SEVERITIES, width=90),
            "alertname": Column(heading="Alert"),
            **place,
            "instance": Column(heading="Host", link=link_to_host("host")),
            "xid": Column(heading="XID", width=60),
            "gpu": Column(heading="GPU", width=60),
            "pci": Column(heading="GPU (PCI)"),
            "action": Column(heading="Action"),
        },
        sort_by="Severity",
        descending=False,  # critical stands before warning
        if_none=NONE,
    )
