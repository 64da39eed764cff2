"""One host (or a few): its CPU, memory, disks and network beside its GPUs. The panels, styles and thresholds people know from the
textfile guide's dashboard (seed 001), for every exporter."""

from __future__ import annotations

from typing import Any

from dashboards import parts
from dashboards.layout import Row, build
from dashboards.panels import (
    NO_GPU_VALUES,
    NO_THRESHOLDS,
    NONE,
    Limit,
    Query,
    Reference,
    gauges,
    in_words,
    log_lines,
    states,
    time_series,
)
from dashboards.queries import fabric, health
from dashboards.queries import host as q
from dashboards.queries.common import GPU, HOST, NAME, per_gpu

ON_HOST = "{{instance}}"
ON_PORT = "{{device}}/{{port}}, {{instance}}"
# See node_infiniband_state_id of node_exporter.
PORT_STATES = {
    0: ("no change", "yellow"),
    1: ("DOWN", "red"),
    2: ("INIT", "orange"),
    3: ("ARMED", "yellow"),
    4: ("ACTIVE", "green"),
    5: ("ACT_DEFER", "yellow"),
}
NO_PORTS = "no InfiniBand or RoCE port"
ON_GPU = "GPU {{gpu}}, {{instance}}"  # the GPU first: legends are cut at their end
NODE_EXPORTER = "no data from node_exporter"


def dashboard() -> dict[str, Any]:
    return build(
        "host",
        "GPU fleet / Host",
        "State and load of a host and its GPUs. For many hosts, use Cluster; for one GPU, GPU detail.",
        variables=("datacenter", "cluster", "exporter_mode", "instance", "gpu"),
        one_host_first=True,
        rows=(
            Row("Now", _now()),
            Row("Jobs", (parts.jobs(NAME, width=24),)),
            Row("GPU metrics", _gpus()),
            Row("CPU, memory, disks, network", _host()),
            Row("InfiniBand and RoCE", _ports()),
            Row(
                "Kernel log",
                (
                    log_lines(
                        "Kernel messages",
                        health.kernel_lines(HOST),
                        description="Kernel log lines about GPUs, links, memory and disks, including XIDs.",
                        width=24,
                        if_none=NONE,
                    ),
                ),
            ),
        ),
    )


def _now() -> tuple[Any, ...]:
    return (
        parts.lost_gpus(NAME),
        parts.host_state(NAME, 4),
        in_words(
            "GPU readings",
            Query(q.gpus_are_read(NAME), ON_HOST),
            description="Whether the host's exporter can read its GPUs. If one GPU has fallen off the bus (XID 79), nvidia-smi "
            "fails and "
            "nvidia_gpu_exporter reports none of them.",
            words={1: ("readable", "green"), 0: ("UNREADABLE", "red")},
            width=4,
            if_none="no data from a GPU exporter",
        ),
        in_words(
            "Ready for work",
            Query(q.readiness(NAME), ON_HOST),
            description="Whether work may start on the host, where the stack has gpu-fleet:readiness: gpu-fleet-ready has the "
            "reasons.",
            words={0: ("pass", "green"), 1: ("warn", "yellow"), 2: ("FAIL", "red"), 3: ("unknown", "orange")},
            width=4,
            if_none="not evaluated",
        ),
        parts.gpus_of(NAME, 4),
        parts.critical_alerts(NAME, 4),
        parts.warnings(NAME, 4),
        parts.firing_alerts(NAME, has_cluster=False, height=6),
    )


def _gpus() -> tuple[Any, ...]:
    return (
        time_series(
            "GPU utilization",
            [Query(per_gpu("gpu:utilization:ratio", GPU), ON_GPU)],
            description="Share of time in which at least one kernel was running; not how much of the GPU it used.",
            unit="percentunit",
            thresholds=parts.UTILIZATION,
            fill=0,
            width=12,
            if_none=NO_GPU_VALUES,
            most=1,
        ),
        time_series(
            "GPU memory used",
            [
                Query(per_gpu("gpu:memory_used:bytes", GPU), ON_GPU),
                Limit(f"sum({per_gpu('gpu:memory_total:bytes', GPU)})", "total"),
            ],
            description="Used memory per GPU, stacked. The dashed line is the total memory of the GPUs.",
            unit="bytes",
            thresholds=NO_THRESHOLDS,
            fill=30,
            width=12,
            if_none=NO_GPU_VALUES,
            is_stacked=True,
        ),
        time_series(
            "GPU temperature",
            [Query(per_gpu("gpu:temperature:celsius", GPU), ON_GPU)],
            description="Temperature of the GPU core. Expect thermal slowdown from 85 C on.",
            unit="celsius",
            thresholds=parts.TEMPERATURE,
            fill=0,
            width=12,
            if_none=NO_GPU_VALUES,
            usual_most=parts.USUAL_HOTTEST_C,
        ),
        time_series(
            "GPU power",
            [
                Query(per_gpu("gpu:power:watts", GPU), ON_GPU),
                Limit(f"sum({per_gpu('gpu:power_limit:watts', GPU)})", "power limit"),
            ],
            description="Power draw per GPU, stacked. The dashed line is the sum of the power limits.",
            unit="watt",
            thresholds=NO_THRESHOLDS,
            fill=70,
            width=12,
            if_none=NO_GPU_VALUES,
            is_stacked=True,
        ),
    )


def _host() -> tuple[Any, ...]:
    return (
        time_series(
            "CPU utilization",
            [Query(q.cpu_ratio(HOST), ON_HOST)],
            description="Share of CPU time that was not idle.",
            unit="percentunit",
            thresholds=NO_THRESHOLDS,
            fill=25,
            width=12,
            if_none=NODE_EXPORTER,
            most=1,
        ),
        time_series(
            "Memory used",
            [
                Query(q.ram_used(HOST), ON_HOST),
                Reference(q.ram_total(HOST), f"total, {ON_HOST}"),
            ],
            description="Memory that is not available to new processes. The dashed line is the total.",
            unit="bytes",
            thresholds=NO_THRESHOLDS,
            fill=70,
            width=12,
            if_none=NODE_EXPORTER,
        ),
        gauges(
            "Disk usage",
            Query(q.disk_used_ratio(HOST), "{{instance}} {{mountpoint}}"),
            description="Used share of each file system.",
            unit="percentunit",
            thresholds=parts.DISK,
            width=12,
            if_none=NODE_EXPORTER,
            most=1,
        ),
        time_series(
            "Network",
            [
                Query(q.network_received(HOST), f"received, {ON_HOST}"),
                Query(q.network_sent(HOST), f"sent, {ON_HOST}"),
            ],
            description="Bytes per second over all interfaces except loopback and container interfaces.",
            unit="Bps",
            thresholds=NO_THRESHOLDS,
            fill=0,
            width=12,
            if_none=NODE_EXPORTER,
        ),
    )


def _ports() -> tuple[Any, ...]:
    return (
        states(
            "RDMA port state",
            Query(fabric.port_states(HOST), ON_PORT),
            description="State of each InfiniBand and RoCE port. A port without a cable is DOWN. EFA adapters are always ACTIVE.",
            words=PORT_STATES,
            width=8,
            if_none=NO_PORTS,
        ),
        time_series(
            "RDMA traffic",
            [
                Query(fabric.received(HOST), f"received, {ON_PORT}"),
                Query(fabric.sent(HOST), f"sent, {ON_PORT}"),
            ],
            description="Bytes per second of each port, with RDMA, which the network panel does not show.",
            unit="Bps",
            thresholds=NO_THRESHOLDS,
            fill=0,
            width=8,
            if_none=NO_PORTS,
        ),
        time_series(
            "RDMA errors",
            [Query(fabric.errors(counter, HOST), f"{name}, {ON_HOST}") for counter, name in fabric.ERRORS.items()],
            description="Errors of all ports of a host. Any link_downed breaks connections; the others matter by their rate.",
            unit="short",
            thresholds=NO_THRESHOLDS,
            fill=0,
            width=8,
            if_none=NO_PORTS,
        ),
    )
