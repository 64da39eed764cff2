"""Simulated metrics of node_exporter and Alloy of a host of the showcase at a point in time, under their real names.

tests/dashboards holds the names against the real programs' (alerts/catalogue). Only metrics that rules and panels use are here.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from math import pi, sin

from gpu_fleet.on_host import slurm_queue as slurm
from gpu_fleet.on_host import slurm_waits
from lab.gpu.scenario import compile_scenario
from lab.showcase.fleet import Host

GIB = 2**30
Sample = tuple[str, dict[str, str], float]

_CORES = 8
_DISKS = {"/": (440 * GIB, 0.58), "/var/lib/docker": (1750 * GIB, 0.79), "/scratch": (7000 * GIB, 0.41)}


@cache
def _uuids(host: Host) -> list[str]:
    """As Slurm's devices have them: AMD's have none."""
    machine = compile_scenario(host.scenario, hostname=f"{host.name}.{host.cluster}")
    return [f"GPU-{gpu['uuid']}" if machine["vendor"] == "nvidia" else "" for gpu in machine["gpus"]]


def node_exporter(host: Host, at_s: float, since_s: float) -> Iterator[Sample]:
    """`since_s`: when the hour began; counters rise from there."""
    ran = at_s - since_s
    bent = _bend(host, at_s) - _bend(host, since_s)
    busy_s = 0.45 * ran + 0.6 * bent
    for cpu in range(_CORES):
        for mode, spent_s in (("idle", ran - busy_s), ("user", 0.8 * busy_s), ("system", 0.2 * busy_s)):
            yield "node_cpu_seconds_total", {"cpu": str(cpu), "mode": mode}, 1e5 + spent_s
    total = 2048 * GIB
    yield "node_memory_MemTotal_bytes", {}, total
    yield "node_memory_MemAvailable_bytes", {}, total * (1 - _wave(host, at_s / 2, 0.2, 0.55))
    for mountpoint, (size, used) in _DISKS.items():
        labels = {"device": f"/dev/nvme{len(mountpoint) % 4}n1", "fstype": "ext4", "mountpoint": mountpoint}
        yield "node_filesystem_size_bytes", labels, size
        yield "node_filesystem_avail_bytes", labels, size * (1 - used)
    namespace = {"device": "nsfs", "fstype": "nsfs", "mountpoint": "/run/netns/container"}
    yield "node_filesystem_size_bytes", namespace, 4096
    yield "node_filesystem_avail_bytes", namespace, 0
    for device, rate in (("eth0", 1.2e8), ("eth1", 6e7), ("lo", 1e6)):
        moved = rate * (ran * 0.6 + bent)
        yield "node_network_receive_bytes_total", {"device": device}, 1e12 + moved
        yield "node_network_transmit_bytes_total", {"device": device}, 6e11 + moved * 0.7
    for device in ("mlx5_0", "mlx5_1"):
        port = {"device": device, "port": "1"}
        yield "node_infiniband_state_id", port, 4
        yield "node_infiniband_port_data_received_bytes_total", port, 5e12 + 2e9 * (ran * 0.6 + bent)
        yield "node_infiniband_port_data_transmitted_bytes_total", port, 5e12 + 1.9e9 * (ran * 0.6 + bent)
        for counter in ("link_downed", "link_error_recovery", "excessive_buffer_overrun_errors", "local_link_integrity_errors"):
            yield f"node_infiniband_{counter}_total", port, 0
        yield "node_infiniband_symbol_error_total", port, 3 + ran // 900
        yield "node_infiniband_port_errors_received_total", port, 1
        yield "node_infiniband_port_discards_transmitted_total", port, ran // 60
        yield "node_infiniband_rnr_nak_retry_packets_received_total", port, 0
        yield "node_infiniband_local_ack_timeout_errors_total", port, ran // 1200
        yield "node_infiniband_roce_slow_restart_used_total", port, 0
    yield "node_time_seconds", {}, at_s
    yield "node_timex_offset_seconds", {}, 2e-5
    yield "node_timex_sync_status", {}, 1
    yield "node_textfile_scrape_error", {}, 0
    yield "gpu_fleet_bundle_info", {"bundle": "5d41402abc4b"}, 1
    yield "gpu_fleet_check_success", {}, 1
    yield "gpu_fleet_check_timestamp_seconds", {}, at_s - at_s % 900
    for part, items in (("alloy", 0), ("node-exporter", 2 if host.name == "gpu-node-003" or host.containers else 0)):
        yield "gpu_fleet_drift_items", {"part": part}, items


def readiness(host: Host, at_s: float, *, is_sick: bool) -> Iterator[Sample]:
    yield "gpu_fleet_ready_state", {}, 0 if host.is_ready or not is_sick else 2
    yield "gpu_fleet_ready_timestamp_seconds", {}, at_s - at_s % 30


def jobs(host: Host) -> Iterator[Sample]:
    """Of Slurm, on hosts outside Kubernetes; the last GPUs are free."""
    uuids = _uuids(host)
    for job_id, user, account, gpus in (("4711", "alice", "vision", range(4)), ("4712", "bob", "speech", (4, 5))):
        about = {"job_id": job_id, "user": user, "account": account, "partition": "train"}
        mig = {"gpu_instance": "3"} if host.mode == "dcgm-4.8" and job_id == "4712" else {}
        found = ({"gpu": str(gpu), "uuid": uuids[gpu], **mig, **about} for gpu in gpus if gpu < len(uuids))
        yield from (("gpu_fleet_job_info", labels, 1.0) for labels in found)
    yield "gpu_fleet_jobs_success", {}, 1


def slurm_queue(host: Host, at_s: float, nodes: Sequence[Host], *, is_sick: bool) -> Iterator[Sample]:
    """As the first host of a cluster asks it: what the collector makes of such a queue and such nodes."""
    text = slurm.metrics(_jobs_of(host, at_s, len(nodes)), _nodes_of(nodes, is_sick=is_sick), _controller(host, at_s), at_s)
    for line in (text + _began_until(int(at_s // 300))).splitlines():
        if not line.startswith("#"):
            series, _, value = line.rpartition(" ")
            yield series.partition("{")[0], dict(re.findall(r'(\w+)="([^"]*)"', series)), float(value)


@cache
def _began_until(turn: int) -> str:
    """Every five minutes a job begins, whose wait is another one each time."""
    if turn % 288 == 0:
        return slurm_waits.counted("", [], turn * 300)
    where, account = (("train", "vision"), ("train", "speech"), ("dev", "robotics"))[turn % 3]
    job = slurm_waits.Started(where, account, turn * 300 - 20, (40, 900, 5400, 200, 20_000)[turn % 5])
    return slurm_waits.counted(_began_until(turn - 1), [job], turn * 300)


def _controller(host: Host, at_s: float) -> dict[str, float]:
    cycle_us = round(4e4 * _wave(host, at_s, 0.5, 1))
    return {
        "slurm_sdiag_jobs_started": int(at_s % 86_400 // 300),
        "slurm_schedule_cycle_last": cycle_us,
        "slurm_server_thread_cnt": 3,
        "gpu_fleet_slurm_duration_seconds": round(cycle_us / 1e5, 1),
    }


def _nodes_of(nodes: Sequence[Host], *, is_sick: bool) -> list[slurm.Node]:
    """Somebody drained the first node of a large cluster, and the health check those that broke; in others these take jobs."""
    has_checks = len(nodes) > 2
    found = []
    for node in nodes:
        gpus = len(_uuids(node))
        flags, reason = {"mixed"}, ""
        if has_checks and node == nodes[0]:
            flags, reason = {"mixed", "drain"}, "fan 3, ticket 812"
        elif has_checks and is_sick and not node.is_ready:
            flags, reason = {"mixed", "drain"}, "gpu-fleet: GPU 0000:63:00: XID 79: Drain the node and reboot it."
        elif node.is_cut_off and is_sick:
            flags, reason = {"down", "not_responding"}, "Not responding"
        found.append(slurm.Node(node.name, ["train"], frozenset(flags), gpus, min(6, gpus), reason))
    more = (
        ("spare-01", "train", {"idle", "drain"}, 0, "PSU, until Friday"),
        ("spare-02", "train", {"idle", "planned"}, 0, ""),
        ("dev-01", "dev", {"allocated"}, 8, ""),
        ("dev-02", "dev", {"idle"}, 0, ""),
        ("cloud-01", "cloud", {"idle", "powered_down"}, 0, ""),
    )
    return [*found, *(slurm.Node(name, [where], frozenset(flags), 8, used, why) for name, where, flags, used, why in more)]


def _jobs_of(host: Host, at_s: float, count: int) -> list[slurm.Jobs]:
    asked = round(_wave(host, at_s, 1, 6))
    since_s = at_s % 3600
    return [
        slurm.Jobs(["train"], "vision", "running", "None", 1, 4 * count, 0),
        slurm.Jobs(["train"], "speech", "running", "None", 1, 2 * count, 0),
        slurm.Jobs(["dev"], "speech", "running", "None", 1, 8, 0),
        slurm.Jobs(["train"], "vision", "pending", "Resources", 1, 16, 7200 + since_s),
        slurm.Jobs(["train"], "vision", "pending", "Priority", asked, 4, since_s),
        slurm.Jobs(["train", "dev"], "robotics", "pending", "Priority", asked // 2, 2, since_s / 2),
        slurm.Jobs(["dev"], "robotics", "pending", "Resources", 1, 1, 90),
        slurm.Jobs(["train"], "speech", "held", "Dependency", 2, 8, 0),
        slurm.Jobs(["train"], "vision", "held", "QOSMaxGRESPerUser", asked // 3, 8, 0),
        slurm.Jobs(["train"], "speech", "held", "JobHeldUser", 1, 4, 0),
    ]


def alloy(host: Host, at_s: float, since_s: float) -> Iterator[Sample]:
    ran = at_s - since_s
    sender = {"component_id": "prometheus.remote_write.mimir", "component_path": "/", "remote_name": "1", "url": "mimir"}
    writer = {"component_id": "loki.write.loki", "component_path": "/send_logs.kernel", "host": "loki", "tenant": ""}
    yield "alloy_build_info", {"version": "v1.11.0"}, 1
    yield "alloy_config_last_load_successful", {}, 1
    for health in ("healthy", "unhealthy"):
        yield "alloy_component_controller_running_components", {"health_type": health}, 14.0 if health == "healthy" else 0.0
    yield "process_start_time_seconds", {}, since_s - 86_400
    yield "process_resident_memory_bytes", {}, 1.9e8 + 2e7 * _wave(host, at_s, 0, 1)
    yield "process_cpu_seconds_total", {}, 2e3 + 0.03 * ran
    yield "prometheus_remote_storage_highest_timestamp_in_seconds", {}, at_s
    yield "prometheus_remote_storage_queue_highest_sent_timestamp_seconds", sender, at_s - 2 - 3 * _wave(host, at_s, 0, 1)
    yield "prometheus_remote_storage_samples_total", sender, 1e7 + 140 * ran
    yield "prometheus_remote_storage_samples_failed_total", sender, 0
    yield "prometheus_remote_storage_samples_dropped_total", {**sender, "reason": "too_old"}, 0
    yield "prometheus_remote_storage_samples_pending", sender, 40 * _wave(host, at_s, 0, 1)
    yield "prometheus_remote_write_wal_storage_active_series", {"component_id": sender["component_id"]}, 2150
    yield "prometheus_tsdb_wal_storage_size_bytes", {"component_id": sender["component_id"]}, 2.1e7
    yield "loki_write_sent_entries_total", writer, 5e4 + 0.4 * ran
    yield "loki_write_batch_retries_total", writer, 0
    yield "loki_write_dropped_entries_total", {**writer, "reason": "ingester_error"}, 0


def cluster_state(host: Host) -> Iterator[Sample]:
    """kube-state-metrics, of one node and its pods; the fourth GPU is free, and a pod that requests eight is pending."""
    node, gpus = {"node": host.name}, {"resource": "nvidia_com_gpu", "unit": "integer"}
    yield "kube_node_status_allocatable", {**node, **gpus}, 4
    yield "kube_node_status_capacity", {**node, **gpus}, 4
    yield "kube_node_status_condition", {**node, "condition": "Ready", "status": "true"}, 1
    for namespace, pod, phase, wanted in (
        ("research", "llama-finetune-0", "Running", 1),
        ("research", "llama-finetune-1", "Running", 1),
        ("serving", "chat-6c9f7d-x2x8k", "Running", 1),
        ("research", "pretrain-0", "Pending", 8),
    ):
        labels = {"namespace": namespace, "pod": pod}
        where = {"node": host.name if phase == "Running" else ""}
        yield "kube_pod_container_resource_requests", {**labels, "container": "main", **where, **gpus}, wanted
        for one in ("Pending", "Running", "Succeeded", "Failed", "Unknown"):
            yield "kube_pod_status_phase", {**labels, "phase": one}, float(one == phase)
        yield "kube_pod_info", {**labels, **where}, 1


def _wave(host: Host, at_s: float, least: float, most: float) -> float:
    phase = zlib.crc32(host.name.encode()) % 628 / 100
    return least + (most - least) * (0.5 + 0.5 * sin(2 * pi * at_s / 1500 + phase))


def _bend(host: Host, at_s: float) -> float:
    """Varies the rate of a counter; the counter never decreases."""
    phase = zlib.crc32(host.name.encode()) % 628 / 100
    return 100 * sin(2 * pi * at_s / 1500 + phase)
