"""Panels shared by several dashboards: missing hosts and GPUs, and firing alerts."""

from __future__ import annotations

import re
from typing import Any, Final

from alerts.xid import CATALOGUE, Action
from dashboards.layout import link_to, link_to_host, uid
from dashboards.panels import HEIGHT, NONE, RED_FROM_ONE, YELLOW_FROM_ONE, Column, Query, count_of, in_words, one_number, rows
from dashboards.queries import fleet as q
from dashboards.queries import gpu, host, work
from dashboards.queries.common import complete, short
from dashboards.runbooks import NAME, runbook_paths

# Those of the textfile guide (seed 001); nvidia-smi -q -d TEMPERATURE shows the slowdown temperature of a GPU.
TEMPERATURE: Final = ((None, "green"), (70, "yellow"), (80, "orange"), (85, "red"))
# From the same guide. Red is not a fault here: the GPU is fully used.
UTILIZATION: Final = ((None, "green"), (0.70, "yellow"), (0.90, "red"))
DISK: Final = ((None, "green"), (0.70, "yellow"), (0.85, "red"))
USUAL_HOTTEST_C: Final = 90
SEVERITIES: Final = {"critical": ("critical", "red"), "warning": ("warning", "yellow")}
# See gpu:recovery_action:code.
RECOVERY_ACTIONS: Final = {
    0: ("none", "green"),
    1: ("reset GPU", "red"),
    2: ("reboot node", "red"),
    3: ("drain P2P", "yellow"),
    4: ("drain and reset", "orange"),
    5: ("recover IMEX", "orange"),
    6: ("reset bus", "red"),
    7: ("reboot system", "red"),
}


def critical_alerts(selector: str, width: int) -> Any:
    return one_number(
        "Critical alerts",
        Query(q.firing(selector, "critical"), "critical"),
        description="Firing alerts that need action now. They are listed in the table below.",
        unit="short",
        thresholds=RED_FROM_ONE,
        width=width,
    )


def warnings(selector: str, width: int) -> Any:
    return one_number(
        "Warnings",
        Query(q.firing(selector, "warning"), "warnings"),
        description="Firing alerts that can wait until working hours.",
        unit="short",
        thresholds=YELLOW_FROM_ONE,
        width=width,
    )


def lost_gpus(selector: str) -> Any:
    return rows(
        "Lost GPUs",
        [Query(gpu.lost(selector), ""), Query(gpu.last_of_lost("gpu:temperature:celsius", selector), "")],
        description="GPUs that the host had and its exporter no longer lists, with their last reading of a day. If it lists none "
        "at all, the exporter or the driver may have failed: see the Host dashboard.",
        width=24,
        height=4,
        columns={
            "instance": Column(heading="Host", link=link_to_host("incident")),
            "gpu": Column(heading="GPU", width=60),
            "pci_bus_id": Column(heading="PCI", width=150),
            "uuid": Column(heading="UUID"),
            "Value #A": Column(heading="Last listed", unit="dateTimeAsIso", width=170),
            "Value #B": Column(heading="Last temperature", unit="celsius", width=130),
            "model": Column(heading="Model"),
        },
        sort_by="Last listed",
        if_none="no GPU of the last day is missing",
    )


JOBS_OUTSIDE: Final = "no job has one of these GPUs, or the stack has no gpu-fleet:jobs"


def jobs(selector: str, *, width: int, height: int = 6, has_host: bool = False) -> Any:
    return rows(
        "Jobs on these GPUs",
        [
            Query(work.jobs_held(selector), ""),
            Query(work.jobs_of_gpus(selector, "gpu:utilization:ratio"), ""),
            Query(work.jobs_of_gpus(selector, "gpu:power:watts"), ""),
        ],
        description="Which job of the scheduler has which GPU, or MIG instance, now.",
        width=width,
        height=height,
        columns={
            **({"instance": Column(heading="Host", link=link_to_host("gpu"))} if has_host else {}),
            "gpu": Column(heading="GPU", width=60),
            "gpu_instance": Column(heading="MIG", width=60),
            "job_id": Column(heading="Job"),
            "user": Column(heading="User"),
            "account": Column(heading="Account"),
            "partition": Column(heading="Partition"),
            "Value #B": Column(heading="GPU utilization", unit="percentunit"),
            "Value #C": Column(heading="Power draw", unit="watt"),
        },
        sort_by="GPU",
        descending=False,
        if_none=JOBS_OUTSIDE,
    )


def host_state(selector: str, width: int) -> Any:
    return in_words(
        "Host",
        Query(host.reports(selector), "{{instance}}"),
        description="Whether the host reports. SILENT: the host or its agent is down, or its network is.",
        words={1: ("reporting", "green"), 0: ("SILENT", "red")},
        width=width,
        if_none="unknown host",
    )


def hosts_of(selector: str, width: int) -> Any:
    now, expected = q.hosts(selector), q.expected_hosts(selector)
    return count_of(
        "Hosts",
        complete=complete(now, expected),
        short=short(now, expected),
        description="Reporting hosts, of those in the stack files. Red: some are silent.",
        width=width,
        link=link_to("cluster", "datacenter", "cluster"),
    )


def gpus_of(selector: str, width: int) -> Any:
    now, expected = q.gpus(selector), q.expected_gpus(selector)
    return count_of(
        "GPUs",
        complete=complete(now, expected),
        short=short(now, expected),
        description="Reporting GPUs, of those in the stack files or the most since a host's last maintenance. "
        "Red: some are missing.",
        width=width,
    )


# An alert's name to the number of its panel among the runbooks.
RUNBOOKS: Final = {alert: (path.rpartition("=")[2], "text") for alert, path in runbook_paths().items()}
RUNBOOK: Final = f"/d/{uid(NAME)}?viewPanel=${{__value.text}}"


_CAPITALS: Final = {"gpu": "GPU", "vm": "VM", "ecc": "ECC", "uvm": "UVM", "xid": "XID"}


def _in_words(action: str) -> str:
    """`reset_gpu`, a value of the label `action`, as "Reset GPU"."""
    words = " ".join(_CAPITALS.get(word, word) for word in action.split("_"))
    return words[:1].upper() + words[1:]


# Of all alerts: those of the tables of codes, and of rules about networks and repeated XIDs.
ACTIONS: Final = {action: (_in_words(action), "text") for action in (*Action, "check_network", "field_diagnostic") if action}
# A code with what it means, up to the first detail; events of AMD's driver are words themselves.
XIDS: Final = {str(code): (f"{code} {re.split(r' ?[:;,(]', xid.meaning)[0]}", "text") for code, xid in sorted(CATALOGUE.items())}
INCIDENT: Final = f"/d/{uid('incident')}?var-instance=${{__data.fields.Host}}&${{__url_time_range}}"


def firing_alerts(selector: str, *, has_cluster: bool, height: int = HEIGHT) -> Any:
    """`has_cluster`: with columns for datacenter and cluster, on dashboards that show several."""
    place = {"datacenter": Column(heading="Datacenter"), "cluster": Column(heading="Cluster")} if has_cluster else {}
    return rows(
        "Firing alerts",
        [Query(q.firing_alerts(selector), "")],
        description="One row per alert, critical first. Its name opens the incident, the number its runbook.",
        width=24,
        height=height,
        columns={
            "severity": Column(heading="Severity", words=SEVERITIES, width=90),
            "alertname": Column(heading="Alert", link=INCIDENT),
            **place,
            "instance": Column(heading="Host", link=link_to_host("host")),
            "code": Column(heading="XID, event", words=XIDS, is_text=True, width=230),
            "gpu": Column(heading="GPU", width=60),
            "pci": Column(heading="GPU (PCI)", width=110),
            "action": Column(heading="Action", words=ACTIONS, is_text=True, width=150),
            "Value": Column(heading="Since", unit="dtdurations", width=110),
            "runbook": Column(heading="Runbook", words=RUNBOOKS, is_text=True, link=RUNBOOK, width=80),
        },
        sort_by="Severity",
        descending=False,  # critical sorts before warning
        if_none=NONE,
    )
