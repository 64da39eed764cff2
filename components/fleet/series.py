"""How many series the hosts of a stack send to Mimir, and how many its ruler records from them: the cost that a preview shows.

An estimate: what a host has beside its GPUs is known only on the host, so a usual GPU server is assumed (HostShape). The tests
hold it against what the simulators, node_exporter and Alloy give, within a tenth. Not done here: logs, whose volume nobody knows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from alerts.vocabulary import SERIES
from gpu_fleet.host.dcgm.fields import known_fields
from gpu_fleet.host.parts.exporter_choice import DCGM_EXPORTER, NVIDIA_GPU_EXPORTER, TEXTFILE
from gpu_fleet.host.scrape_interval import DEFAULT_S
from gpu_fleet.stackfile.counters import Counters
from gpu_fleet.stackfile.hostspec import HostSpec


@dataclass(frozen=True, kw_only=True)
class HostShape:
    """What the number of a host's series depends on. The defaults are a server with eight H100 and two CPUs of 64 threads."""

    gpus: int = 8
    cpus: int = 128  # threads
    cores: int = 64  # with a sensor of heat each, which a VM does not show
    network_devices: int = 10  # without those of containers, which node_exporter leaves out
    disks: int = 9
    filesystems: int = 4
    infiniband_ports: int = 8
    units: int = 8  # of systemd, as many as start-node-exporter asks for
    nvlinks: int = 18  # per GPU


@dataclass(frozen=True, kw_only=True)
class Series:
    """`sent`: by one host. `recorded`: by the ruler from that."""

    sent: int
    recorded: int


# Measured with node_exporter 1.12 and the flags of start-node-exporter; sensors as its hwmon collector gives coretemp's.
_NODE_BASE: Final = 280
_PER_CPU: Final = 8
_PER_CORE: Final = 5
_PER_NETWORK_DEVICE: Final = 37
_PER_DISK: Final = 18
_PER_FILESYSTEM: Final = 9
# An mlx5 port on InfiniBand, which RoCE exceeds by four: 3 of its state, 21 counters and 26 hw_counters, and the device's info.
# Source: sysfs of a ConnectX-7 of an H100 host (leptonai/gpud at 4a8de33a, .../infiniband/class/testdata), and what the collector
# of node_exporter 1.12.1 reads of it (collector/infiniband_linux.go); read 2026-11-22.
_PER_INFINIBAND_PORT: Final = 51
_PER_UNIT: Final = 6
# Of 440; collect_agent.alloy keeps these.
_ALLOY: Final = 50
# up and scrape_*.
_PER_SCRAPE: Final = 5
# Duration and success of the collector of textfiles in Alloy.
_COLLECTOR: Final = 2

# What a host reports about itself through textfiles. Of its own check: drift, a series for each of its parts (dcgm-exporter: in
# a container), success and time. Of the bundle: its name, and the time of that file. Of the collector: success, and the time of
# each file.
_PARTS: Final = {DCGM_EXPORTER: 18, NVIDIA_GPU_EXPORTER: 14, TEXTFILE: 13}
_CHECK: Final = 2
_BUNDLE: Final = 2
_TEXTFILES: Final = {DCGM_EXPORTER: 2, NVIDIA_GPU_EXPORTER: 2, TEXTFILE: 3}
_ASKED: Final = 4  # what the textfile collector asks NVIDIA's driver for; AMD's one of it
_PULL: Final = 8  # of hosts that provision themselves: a part, a file, and six of gpu-fleet-pull

# Of sections of the stack file: their part in the own check, the time of each file, and what they say themselves; of jobs also
# one of each GPU that has one, and the word for it.
_READINESS: Final = 6
_JOBS: Final = 4
_JOB: Final = "gpu:job:info"
_MIG: Final = "gpu:mig_mode:bool"  # of GPUs in that mode alone
# Of a host that asks Slurm: a series per node, and what two partitions, ten accounts and eight reasons have. Each partition has
# nine for the waits of jobs that began, each account two.
_QUEUE: Final = 160
# Recorded of a host to count the GPU-hours: inventory, model, what a listed GPU counts; and whether it is available.
_USAGE: Final = 4

# As the exporters' simulators give them for an H100.
_PER_GPU: Final = {NVIDIA_GPU_EXPORTER: 40.5, TEXTFILE: 15}
_RECOVERY_BY_TEXTFILE: Final = 3  # recovery action and the state of row remapping: NVIDIA's
_HEALTH_WATCHES: Final = 11
# Rows of a list of counters that a healthy GPU of today leaves out: before the first event, and what came before Ampere.
_SELDOM: Final = frozenset(
    {
        "DCGM_FI_DEV_XID_ERRORS",
        "DCGM_EXP_XID_ERRORS_TOTAL",
        "DCGM_EXP_XID_ERRORS_COUNT",
        "DCGM_EXP_CLOCK_EVENTS_TOTAL",
        "DCGM_EXP_CLOCK_EVENTS_COUNT",
        "DCGM_FI_DEV_RETIRED_SBE",
        "DCGM_FI_DEV_RETIRED_DBE",
        "DCGM_FI_DEV_RETIRED_PENDING",
    }
)
# Words of the vocabulary that an H100 does not give by nvidia-smi: NVML's alone, and what came before Ampere.
_NOT_BY_NVIDIA_SMI: Final = frozenset({"gpu:energy:joules_total", "gpu:pages_retired_pending:bool"})


def of_host(mode: str, shape: HostShape, counters: Counters, *, is_amd: bool = False, pulls: bool = False) -> Series:
    """`mode`: as the label exporter_mode has it. `counters`: of dcgm-exporter. `pulls`: the host provisions itself."""
    rdma = 1 if shape.infiniband_ports else 0
    links = 0 if is_amd else rdma + shape.gpus * (2 + (3 + 2 * shape.nvlinks if shape.nvlinks else 0))
    per_gpu = len(_given(counters)) + _of_health(counters) if mode == DCGM_EXPORTER else _PER_GPU[mode]
    if is_amd and mode == TEXTFILE:
        per_gpu -= _RECOVERY_BY_TEXTFILE
    scrapes = 3 if mode == TEXTFILE else 4
    agents = _ALLOY + _PER_SCRAPE * scrapes + _COLLECTOR + of_fleet(mode, is_amd=is_amd, pulls=pulls)
    sent = of_node_exporter(shape) + links + per_gpu * shape.gpus + agents
    return Series(sent=round(sent), recorded=_recorded(mode, shape, counters, is_amd=is_amd))


def of_fleet(mode: str, *, is_amd: bool = False, pulls: bool = False) -> int:
    """Series about drift, the host's own runs, and the textfiles with them; AMD hosts have no links."""
    links = 2 if is_amd else 0
    asked = 0 if mode != TEXTFILE else 1 if is_amd else _ASKED
    return _PARTS[mode] + _CHECK + _BUNDLE + _TEXTFILES[mode] + 1 - links + asked + (_PULL if pulls else 0)


def of_node_exporter(shape: HostShape) -> int:
    return (
        _NODE_BASE
        + _PER_CPU * shape.cpus
        + _PER_CORE * shape.cores
        + _PER_NETWORK_DEVICE * shape.network_devices
        + _PER_DISK * shape.disks
        + _PER_FILESYSTEM * shape.filesystems
        + _PER_INFINIBAND_PORT * shape.infiniband_ports
        + _PER_UNIT * shape.units
    )


# Measured in the dev datacenter on 2026-11-25, eight H100. Per GPU: its address twice, the most of its PCIe width and generation;
# the most of its NVLinks and of their speed, each twice.
_REMEMBERED: Final = 4
_REMEMBERED_OF_LINKS: Final = 4
_RECORDED_OF_HOST: Final = 44  # 20 of them about what its GPUs are measured to give


def _given(counters: Counters) -> frozenset[str]:
    return frozenset(row.name for row in counters.rows if row.kind != "label") - _SELDOM


def _of_health(counters: Counters) -> int:
    """What the health watches of DCGM add to the one series of their row."""
    return _HEALTH_WATCHES - 1 if "DCGM_EXP_GPU_HEALTH_STATUS" in _given(counters) else 0


def _recorded(mode: str, shape: HostShape, counters: Counters, *, is_amd: bool) -> int:
    """Words of the vocabulary: per GPU; what rules remember of each GPU; and those of a host."""
    exporters = {mode} if is_amd else {mode, TEXTFILE}  # link traffic comes by a textfile from every NVIDIA host
    numbers = {known_fields().get(name) for name in _given(counters)}
    per_gpu = 0
    for word in SERIES.values():
        if (
            not word.name.startswith("gpu:")
            or word.name in (_JOB, _MIG)
            or (mode == NVIDIA_GPU_EXPORTER and word.name in _NOT_BY_NVIDIA_SMI)
        ):
            continue
        sources = [source for source in word.sources if source.exporter in exporters]
        if mode != TEXTFILE:
            sources = [source for source in sources if source.exporter != TEXTFILE or _is_of_links(source.metrics)]
        if mode == DCGM_EXPORTER:
            sources = [source for source in sources if source.exporter == TEXTFILE or _any_number(source.metrics) & numbers]
        if is_amd:
            sources = [source for source in sources if not _is_of_links(source.metrics)]
        per_gpu += len({tuple(source.labels.items()) for source in sources})
    per_gpu += _REMEMBERED + (_REMEMBERED_OF_LINKS if shape.nvlinks and not is_amd else 0)
    return per_gpu * shape.gpus + _RECORDED_OF_HOST


def _is_of_links(metrics: Iterable[str]) -> bool:
    return any(name.startswith(("node_gpu_pcie_", "node_gpu_nvlink")) for name in metrics)


def gives(counters: Counters, word: str) -> bool:
    """Whether dcgm-exporter with this list gives a series of the vocabulary, of a GPU that has it."""
    numbers = {row.number for row in counters.rows if row.kind != "label"}
    return any(source.exporter == DCGM_EXPORTER and _any_number(source.metrics) & numbers for source in SERIES[word].sources)


def _any_number(metrics: Iterable[str]) -> set[int | None]:
    return {known_fields().get(name) for name in metrics} - {None}


def summary(
    hosts: Iterable[HostSpec],
    counters: Counters,
    counters_name: str,
    *,
    readiness: bool = False,
    jobs: bool = False,
    queue_hosts: int = 0,
    interval_s: int = DEFAULT_S,
) -> tuple[str, Series] | None:
    """The estimate in words, and its sum where each host gives the most that it may; None without hosts.

    `readiness`, `jobs`: whether the stack has the section. Every GPU is taken to have a job. `queue_hosts`: how many ask Slurm.
    `interval_s`: of scrapes.
    """
    kinds = Counter((host.exporter, host.vendor, host.gpus, host.connection == "pull") for host in hosts if not host.lost)
    if not kinds:
        return None
    usual = HostShape()
    lines, total = [], Series(sent=0, recorded=0)
    for (exporter, vendor, gpus, pulls), count in sorted(kinds.items(), key=str):
        shape = usual if gpus is None else replace(usual, gpus=gpus)
        is_amd = vendor == "amd"
        of_jobs = shape.gpus if jobs else 0
        more = of_jobs + _JOBS * jobs + _READINESS * readiness
        likely = [
            (mode, Series(sent=one.sent + more, recorded=one.recorded + of_jobs + _USAGE * jobs))
            for mode in _modes(exporter, vendor)
            for one in [of_host(mode, shape, counters, is_amd=is_amd, pulls=pulls)]
        ]
        most = Series(sent=max(one.sent for _, one in likely), recorded=max(one.recorded for _, one in likely))
        total = Series(sent=total.sent + count * most.sent, recorded=total.recorded + count * most.recorded)
        each = " or ".join(f"{series.sent:,} with {_named(mode, counters_name)}" for mode, series in likely)
        lines.append(f"{_counted(count, 'host')} with {shape.gpus} GPUs{' (assumed)' if gpus is None else ''}: {each}")
    if queue_hosts:
        queue = _QUEUE + sum(kinds.values())
        total = replace(total, sent=total.sent + queue_hosts * queue)
        lines.append(f"{_counted(queue_hosts, 'host')} with Slurm's queue: {queue:,} more each")
    sums = f"{total.sent:,} sent by {_counted(sum(kinds.values()), 'host')}, and {total.recorded:,} recorded from them"
    node = f"{of_node_exporter(usual):,} of them, on a server with {usual.cpus} CPU threads"
    samples = f"{total.sent / interval_s:,.0f} samples per second, {60 / interval_s:g} per series and minute"
    ends = [f"Each host's node_exporter gives {node}.", f"Scraped every {interval_s} s, they are {samples}."]
    return "\n  ".join([f"Series in Mimir, estimated: up to {sums}.", *lines, *ends]), total


def _modes(exporter: str, vendor: str) -> Iterator[str]:
    """What choose-exporter may choose."""
    if vendor == "amd":
        yield TEXTFILE
    elif exporter == "auto":
        yield from (DCGM_EXPORTER, NVIDIA_GPU_EXPORTER)
    else:
        yield exporter


def _named(mode: str, counters_name: str) -> str:
    return f"{mode} ({counters_name} counters)" if mode == DCGM_EXPORTER else mode


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
