"""Samples in Prometheus's text format. The one place for the collectors' names, labels and help texts.

The first six names and their label gpu are those of the Debian textfile guide (seed 001).
"""

from __future__ import annotations

from typing import Mapping, NamedTuple, Sequence


class Metric(NamedTuple):
    kind: str
    labels: tuple[str, ...]
    help: str


SAYS_LINES = 3  # the last ones: a traceback ends with its reason
_GPU = ("gpu",)
METRICS: dict[str, Metric] = {
    "memory_total_bytes": Metric("gauge", _GPU, "Memory of the GPU."),
    "memory_used_bytes": Metric("gauge", _GPU, "Memory in use."),
    "utilization_percent": Metric(
        "gauge", _GPU, "GPU utilization: share of the last sample period in which at least one kernel was running."
    ),
    "temperature_celsius": Metric(
        "gauge", _GPU, "Temperature of the GPU core; on AMD the junction temperature where it is known."
    ),
    "power_draw_watts": Metric("gauge", _GPU, "Current power draw."),
    "power_limit_watts": Metric("gauge", _GPU, "Power limit of the GPU."),
    "temperature_limit_celsius": Metric("gauge", _GPU, "Temperature at which the GPU reduces its clocks."),
    "memory_temperature_celsius": Metric("gauge", _GPU, "Temperature of the memory."),
    "memory_temperature_limit_celsius": Metric("gauge", _GPU, "Maximum operating temperature of the memory."),
    "ecc_corrected_total": Metric("counter", _GPU, "Corrected memory errors since the driver was loaded."),
    "ecc_uncorrected_total": Metric("counter", _GPU, "Uncorrectable memory errors since the driver was loaded."),
    "recovery_action": Metric(
        "gauge",
        _GPU,
        "Recovery action of the driver: 0 none, 1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset, 5 IMEX, 6 bus reset, "
        "7 system reboot.",
    ),
    "row_remap_failed": Metric("gauge", _GPU, "1 once row remapping has failed."),
    "row_remap_pending": Metric("gauge", _GPU, "1 while row remapping is pending until the next GPU reset."),
    "info": Metric(
        "gauge",
        ("gpu", "uuid", "model", "pci", "driver_version"),
        "Always 1; identity of the GPU. pci has the form used in the kernel log.",
    ),
    "partitions": Metric("gauge", _GPU, "Partitions that the GPU is divided into."),
    "unreadable": Metric("gauge", (), "GPUs that the driver lists but cannot read, for example because they fell off the bus."),
    "passed_through": Metric("gauge", ("pci",), "Always 1: a GPU that the host has given to a guest (vfio-pci)."),
    "nvlink_transmit_bytes_total": Metric("counter", ("gpu", "link"), "Data sent over one NVLink."),
    "nvlink_receive_bytes_total": Metric("counter", ("gpu", "link"), "Data received over one NVLink."),
    "nvlinks_active": Metric("gauge", _GPU, "NVLinks of the GPU that are up."),
    "nvlink_speed_bytes_per_second": Metric("gauge", _GPU, "Speed of the slowest NVLink that is up, in one direction."),
    "fabric_info": Metric(
        "gauge",
        ("gpu", "cluster_uuid", "clique"),
        "Always 1; NVLink domain across hosts that the GPU belongs to, and its clique there.",
    ),
    "fabric_state": Metric(
        "gauge",
        _GPU,
        "Registration with the NVLink fabric: 0 none, 1 not started, 2 in progress, 3 completed, 4 failed.",
    ),
    "rdma_ports": Metric("gauge", (), "InfiniBand and RoCE ports of the host; absent where there are none."),
    "pcie_transmit_bytes_per_second": Metric("gauge", _GPU, "PCIe traffic from the GPU, as sampled by the driver."),
    "pcie_receive_bytes_per_second": Metric("gauge", _GPU, "PCIe traffic to the GPU, as sampled by the driver."),
    "collector_success": Metric("gauge", ("collector",), "1 when the last collection succeeded."),
    "collector_part_success": Metric(
        "gauge",
        ("collector", "part"),
        "0 when a part of the last collection failed, though not all of it: readings, of GPUs that are listed.",
    ),
    "collector_asks": Metric(
        "gauge",
        ("collector", "field"),
        "Always 1; what the last collection asked for, of the values that not every driver and release of the collector has.",
    ),
    "collector_duration_seconds": Metric("gauge", ("collector",), "How long the last collection took."),
    "collector_timestamp_seconds": Metric("gauge", ("collector",), "When the last collection ended."),
}


# Of the readiness, with the prefix gpu_fleet_.
READINESS: dict[str, Metric] = {
    "ready_state": Metric("gauge", (), "Whether work may start on this host: 0 pass, 1 warn, 2 fail, 3 unknown."),
    "ready_timestamp_seconds": Metric("gauge", (), "When that was evaluated."),
    "ready_reason": Metric("gauge", ("reason", "gpu"), "Why the state is not pass: the state that the reason alone would give."),
    "ready_drained_timestamp_seconds": Metric(
        "gauge", (), "When gpu-fleet drained this node in Slurm, or tainted it in Kubernetes; absent while it is neither."
    ),
    "ready_schedulable": Metric("gauge", (), "Whether the scheduler starts work on this node, whoever drained it or did not."),
    "ready_drain_refused": Metric("gauge", (), "1 while this node is not drained because too many nodes are already."),
}

# Of jobs, with the prefix gpu_fleet_.
_JOB = ("uuid", "gpu", "gpu_instance", "job_id", "user", "account", "partition")
JOBS: dict[str, Metric] = {
    "job_info": Metric("gauge", _JOB, "Always 1: a job that has this GPU, or this MIG instance of it."),
    "jobs_success": Metric("gauge", (), "1 when the scheduler answered in the last sweep."),
    "jobs_timestamp_seconds": Metric("gauge", (), "When jobs were last recorded or swept."),
}

# Of Slurm's queue, whole names: the first ones are those of slurmctld's own metrics, with their meaning.
_PARTITION = ("partition",)
SLURM: dict[str, Metric] = {
    "slurm_partition_jobs_pending": Metric("gauge", _PARTITION, "Jobs that wait, held ones too."),
    "slurm_partition_jobs_hold": Metric(
        "gauge", _PARTITION, "Jobs that somebody holds, or that wait for a time or for another job."
    ),
    "slurm_partition_jobs_running": Metric("gauge", _PARTITION, "Jobs that run."),
    "slurm_partition_nodes_idle": Metric("gauge", _PARTITION, "Nodes without jobs, drained ones too."),
    "slurm_partition_nodes_drained": Metric("gauge", _PARTITION, "Nodes that are drained and have no jobs."),
    "slurm_partition_nodes_planned": Metric("gauge", _PARTITION, "Nodes that are kept for a larger job."),
    "slurm_partition_nodes_resv": Metric("gauge", _PARTITION, "Nodes in a reservation."),
    "slurm_partition_nodes_maint": Metric("gauge", _PARTITION, "Nodes in a reservation for maintenance."),
    "slurm_sdiag_jobs_started": Metric("gauge", (), "Jobs started since the statistics were reset, as they are each midnight."),
    "slurm_schedule_cycle_last": Metric("gauge", (), "Microseconds of the last cycle of the scheduler."),
    "slurm_server_thread_cnt": Metric("gauge", (), "Threads of slurmctld at work."),
    "gpu_fleet_slurm_partition_gpus": Metric(
        "gauge", ("partition", "state"), "GPUs: allocated, idle, powered_down, or unusable: no job, where Slurm starts none."
    ),
    "gpu_fleet_slurm_partition_gpus_pending": Metric("gauge", _PARTITION, "GPUs that waiting jobs ask for, without held ones."),
    "gpu_fleet_slurm_partition_wait_seconds": Metric(
        "gauge", ("partition", "quantile"), "How long the jobs that wait have been eligible: the median, and the longest."
    ),
    "gpu_fleet_slurm_start_wait_seconds_bucket": Metric(
        "counter", ("partition", "le"), "Jobs that had been eligible for at most so many seconds when they began."
    ),
    "gpu_fleet_slurm_start_wait_seconds_sum": Metric("counter", _PARTITION, "How long they had been eligible, in all."),
    "gpu_fleet_slurm_start_wait_seconds_count": Metric("counter", _PARTITION, "Jobs that began."),
    "gpu_fleet_slurm_account_start_wait_seconds_total": Metric(
        "counter", ("account",), "How long the account's jobs had been eligible when they began, in all."
    ),
    "gpu_fleet_slurm_account_starts_total": Metric("counter", ("account",), "Jobs of the account that began."),
    "gpu_fleet_slurm_start_wait_timestamp_seconds": Metric("gauge", (), "Until when starts of jobs are counted."),
    "gpu_fleet_slurm_gpus": Metric("gauge", ("state",), "GPUs of the cluster: allocated, idle, powered_down, unusable."),
    "gpu_fleet_slurm_account_jobs": Metric("gauge", ("account", "state"), "Jobs: running, pending, held."),
    "gpu_fleet_slurm_account_gpus": Metric("gauge", ("account", "state"), "GPUs that these jobs have, or ask for."),
    "gpu_fleet_slurm_jobs_pending": Metric("gauge", ("reason",), "Jobs by the reason for which they wait."),
    "gpu_fleet_slurm_node_info": Metric("gauge", ("node", "state", "reason"), "Always 1; the state of a node."),
    "gpu_fleet_slurm_duration_seconds": Metric("gauge", (), "How long the answers of Slurm's controller took."),
    "gpu_fleet_slurm_success": Metric("gauge", (), "1 when Slurm's controller answered."),
    "gpu_fleet_slurm_timestamp_seconds": Metric("gauge", (), "When it was last asked."),
}


class Metrics:
    """The samples of one collection. `said`: why a part of it failed, for whoever reads the file: comments to Prometheus, which
    converge's check shows as the reason of the failure."""

    def __init__(self, said: Sequence[str] = (), *, known: Mapping[str, Metric] = METRICS, prefix: str = "node_gpu_") -> None:
        self._lines: dict[str, list[str]] = {}
        self._known, self._prefix = known, prefix
        self.said = list(said)

    def add(self, name: str, value: float, *labels: str) -> None:
        """`labels`: the values, in the order in which the metric has them."""
        names = self._known[name].labels
        if len(names) != len(labels):
            raise ValueError(f"{name} has the labels {names}")
        text = ",".join(f'{label}="{_escaped(of)}"' for label, of in zip(names, labels))
        self._lines.setdefault(name, []).append(f"{self._prefix}{name}{{{text}}} {number(value)}\n".replace("{}", ""))

    def part(self, collector: str, part: str, *, works: bool) -> None:
        self.add("collector_part_success", int(works), collector, part)

    def render(self) -> str:
        parts = []
        for name, metric in self._known.items():
            if name in self._lines:
                whole = self._prefix + name
                parts.append(f"# HELP {whole} {metric.help}\n# TYPE {whole} {metric.kind}\n")
                parts += self._lines[name]
        return "".join([*parts, *(f"# says: {line}\n" for line in self.said[-SAYS_LINES:])])


def number(value: float) -> str:
    """An exact integer where it is one: floats print 1e+16 for bytes."""
    return str(int(value)) if value == int(value) else repr(value)


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
