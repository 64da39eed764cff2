"""Fleet overview: is the fleet healthy and busy, and which datacenter is not? The screen on the wall."""

from __future__ import annotations

from typing import Any

from dashboards import queries as q
from dashboards.layout import build, uid
from dashboards.panels import NO_THRESHOLDS, Limit, Query, bars, log_counts, one_number, rows, time_series

# Below 10 % a GPU waits more than it works. The temperatures are those of the textfile guide (seed 001); at what a GPU
# really slows down, nvidia-smi -q -d TEMPERATURE tells.
BUSY_FROM = 0.10
TEMPERATURE = ((None, "green"), (70, "yellow"), (80, "orange"), (85, "red"))
HOST_LINK = f"/d/{uid('host')}?${{datacenter:queryparam}}&${{cluster:queryparam}}"


def dashboard() -> dict[str, Any]:
    everything = q.CLUSTER
    by_cluster = "datacenter, cluster"
    return build(
        "overview",
        "GPU fleet / Overview",
        "Every datacenter at a glance: what reports, what fires, what is busy.",
        variables=("datacenter", "cluster"),
        rows=(
            (
                "Now",
                (
                    one_number(
                        "Critical alerts",
                        Query(q.firing(everything, "critical"), "critical"),
                        description="Alerts that need somebody now. The table below names them.",
                        unit="short",
                        thresholds=((None, "green"), (1, "red")),
                        width=4,
                    ),
                    one_number(
                        "Warnings",
                        Query(q.firing(everything, "warning"), "warnings"),
                        description="Alerts for working hours.",
                        unit="short",
                        thresholds=((None, "green"), (1, "yellow")),
                        width=4,
                    ),
                    one_number(
                        "Hosts",
                        Query(q.hosts(everything), "hosts"),
                        description="Hosts that report at least one GPU now.",
                        unit="short",
                        thresholds=NO_THRESHOLDS,
                        width=4,
                        link=HOST_LINK,
                    ),
                    one_number(
                        "GPUs",
                        Query(q.gpus(everything), "GPUs"),
                        description="GPUs that report now. A step down is a GPU or host that was lost.",
                        unit="short",
                        thresholds=NO_THRESHOLDS,
                        width=4,
                    ),
                    one_number(
                        "Busy GPUs",
                        Query(q.busy_gpus(everything, BUSY_FROM), "busy"),
                        description="GPUs with a utilisation of at least 10 %.",
                        unit="short",
                        thresholds=NO_THRESHOLDS,
                        width=4,
                    ),
                    one_number(
                        "Held but idle",
                        Query(q.idle_with_memory(everything), "idle"),
                        description="GPUs without work for half an hour while a program holds more than 1 GiB of their memory.",
                        unit="short",
                        thresholds=((None, "green"), (1, "yellow")),
                        width=4,
                    ),
                ),
            ),
            (
                "What is wrong",
                (
                    rows(
                        "Firing alerts",
                        [Query(q.firing_alerts(everything), "")],
                        description="One row per alert. What to do stands in the notification and in the alert's runbook.",
                        unit="short",
                        thresholds=NO_THRESHOLDS,
                        width=24,
                        columns={
                            "severity": "Severity",
                            "alertname": "Alert",
                            "datacenter": "Datacenter",
                            "cluster": "Cluster",
                            "instance": "Host",
                            "xid": "XID",
                            "gpu": "GPU",
                            "pci": "GPU (PCI)",
                            "action": "Action",
                        },
                        sort_by="Severity",
                        descending=False,  # critical stands before warning
                    ),
                    log_counts(
                        "XID lines by code",
                        Query(q.xid_lines_by_code(everything), "XID {{xid}}"),
                        description="Errors that NVIDIA's drivers logged, by code.",
                        unit="short",
                        width=24,
                    ),
                ),
            ),
            (
                "Datacenters compared",
                (
                    time_series(
                        "GPU utilisation",
                        [Query(q.averaged("gpu:utilization:ratio", everything, by_cluster), "{{datacenter}} / {{cluster}}")],
                        description="Share of time in which some kernel ran, average over the GPUs of a cluster.",
                        unit="percentunit",
                        thresholds=NO_THRESHOLDS,
                        filled=False,
                        width=12,
                        most=1,
                    ),
                    time_series(
                        "GPU memory in use",
                        [Query(q.memory_used_ratio(everything, by_cluster), "{{datacenter}} / {{cluster}}")],
                        description="Memory that programs hold, of all GPU memory of a cluster.",
                        unit="percentunit",
                        thresholds=NO_THRESHOLDS,
                        filled=False,
                        width=12,
                        most=1,
                    ),
                    time_series(
                        "GPU power",
                        [
                            Query(q.summed("gpu:power:watts", everything, by_cluster), "{{datacenter}} / {{cluster}}"),
                            Limit(
                                q.summed("gpu:power_limit:watts", everything, by_cluster), "{{datacenter}} / {{cluster}} limit"
                            ),
                        ],
                        description="Power that the GPUs of a cluster draw, and (dashed) what they may draw.",
                        unit="watt",
                        thresholds=NO_THRESHOLDS,
                        filled=False,
                        width=12,
                    ),
                    time_series(
                        "GPUs that report",
                        [Query(q.gpus_by(everything, by_cluster), "{{datacenter}} / {{cluster}}")],
                        description="A step down is a lost GPU, a lost host, or a change of the stack.",
                        unit="short",
                        thresholds=NO_THRESHOLDS,
                        filled=False,
                        width=12,
                    ),
                ),
            ),
            (
                "Extremes",
                (
                    bars(
                        "Hottest GPUs",
                        Query(
                            q.top(10, q.per_gpu("gpu:temperature:celsius", everything)), "{{cluster}} {{instance}} GPU {{gpu}}"
                        ),
                        description="The ten hottest GPUs now.",
                        unit="celsius",
                        thresholds=TEMPERATURE,
                        width=12,
                    ),
                    bars(
                        "Hosts with the most free GPU memory",
                        Query(
                            q.top(10, q.summed("gpu:memory_free:bytes", everything, "datacenter, cluster, instance")),
                            "{{cluster}} {{instance}}",
                        ),
                        description="Where a new job finds room.",
                        unit="bytes",
                        thresholds=NO_THRESHOLDS,
                        width=12,
                    ),
                ),
            ),
        ),
    )
