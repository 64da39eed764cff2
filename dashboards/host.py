"""One host (or a few): its CPU, memory, disks and network beside its GPUs. The panels, styles and thresholds people know from the
textfile guide's dashboard (seed 001), for every exporter."""

from __future__ import annotations

from typing import Any

from dashboards import queries as q
from dashboards.fleet_overview import TEMPERATURE
from dashboards.layout import build
from dashboards.panels import NO_THRESHOLDS, Limit, Query, Reference, gauges, log_lines, time_series

ON_HOST = "{{instance}}"
ON_GPU = "{{instance}} GPU {{gpu}}"


def dashboard() -> dict[str, Any]:
    return build(
        "host",
        "GPU fleet / Host",
        "What the chosen hosts and their GPUs do. Choose one host for details; with many, use the overview.",
        variables=("datacenter", "cluster", "exporter_mode", "instance", "gpu"),
        rows=(
            (
                "GPUs",
                (
                    time_series(
                        "GPU utilisation",
                        [Query(q.per_gpu("gpu:utilization:ratio", q.GPU), ON_GPU)],
                        description="Share of time in which some kernel ran; not how much of the GPU it used.",
                        unit="percentunit",
                        thresholds=((None, "green"), (0.70, "yellow"), (0.90, "red")),
                        filled=False,
                        width=12,
                        most=1,
                    ),
                    time_series(
                        "GPU memory in use",
                        [
                            Query(q.per_gpu("gpu:memory_used:bytes", q.GPU), ON_GPU),
                            Limit(f"max({q.per_gpu('gpu:memory_total:bytes', q.GPU)})", "most a GPU has"),
                        ],
                        description="Memory that programs hold; the dashed line is all of a GPU's memory.",
                        unit="bytes",
                        thresholds=NO_THRESHOLDS,
                        filled=True,
                        width=12,
                    ),
                    time_series(
                        "GPU temperature",
                        [Query(q.per_gpu("gpu:temperature:celsius", q.GPU), ON_GPU)],
                        description="Temperature of the GPU core. From 85 C on, expect the GPU to slow itself down.",
                        unit="celsius",
                        thresholds=TEMPERATURE,
                        filled=False,
                        width=12,
                    ),
                    time_series(
                        "GPU power",
                        [
                            Query(q.per_gpu("gpu:power:watts", q.GPU), ON_GPU),
                            Limit(f"max({q.per_gpu('gpu:power_limit:watts', q.GPU)})", "limit"),
                        ],
                        description="Power drawn; the dashed line is the power limit.",
                        unit="watt",
                        thresholds=NO_THRESHOLDS,
                        filled=False,
                        width=12,
                    ),
                ),
            ),
            (
                "Host",
                (
                    time_series(
                        "CPU utilisation",
                        [Query(q.cpu_ratio(q.HOST), ON_HOST)],
                        description="Share of all CPU time that was not idle.",
                        unit="percentunit",
                        thresholds=NO_THRESHOLDS,
                        filled=True,
                        width=12,
                        most=1,
                    ),
                    time_series(
                        "RAM in use",
                        [
                            Query(q.ram_used(q.HOST), ON_HOST),
                            Reference(q.ram_total(q.HOST), f"{ON_HOST} total"),
                        ],
                        description="Memory that cannot be given to programs at once; the dashed line is all there is.",
                        unit="bytes",
                        thresholds=NO_THRESHOLDS,
                        filled=True,
                        width=12,
                    ),
                    gauges(
                        "Disk usage",
                        Query(q.disk_used_ratio(q.HOST), "{{instance}} {{mountpoint}}"),
                        description="Share of each file system that is in use.",
                        unit="percentunit",
                        thresholds=((None, "green"), (0.70, "yellow"), (0.85, "red")),
                        width=12,
                        most=1,
                    ),
                    time_series(
                        "Network",
                        [
                            Query(q.network_received(q.HOST), f"{ON_HOST} received"),
                            Query(q.network_sent(q.HOST), f"{ON_HOST} sent"),
                        ],
                        description="Bytes per second over all interfaces but loopback and those of containers.",
                        unit="Bps",
                        thresholds=NO_THRESHOLDS,
                        filled=False,
                        width=12,
                    ),
                ),
            ),
            (
                "Kernel",
                (
                    log_lines(
                        "Kernel messages",
                        q.kernel_lines(q.HOST),
                        description="What the kernel said about GPUs, links, memory and disks; XIDs among it.",
                        width=24,
                    ),
                ),
            ),
        ),
    )
