"""The page docs/dashboards-by-exporter.md: which panels are empty in which exporter mode, and why."""

from __future__ import annotations

from collections.abc import Mapping

from lab.showcase import MODES

_PREFIX = "GPU fleet / "
_XID = "XIDs are errors of NVIDIA's driver."
_AMD = "Events of AMD's driver; empty on NVIDIA hosts."
_THROTTLE = "Clock throttle reasons are reported by the exporters of NVIDIA and AMD, not by the textfile collectors."
_THROTTLED = "Reported by dcgm-exporter and nvidia_gpu_exporter."
_TEXTFILE = "The textfile collectors read no clocks."
_REMAP = "Row remapping is a feature of NVIDIA GPUs; the textfile collectors read its state alone."
_PROFILING = "Requires the profiling counters of dcgm-exporter (`dcgm.counters: profiling`, or a cluster's `dcgm`)."
_PCIE = "PCIe link width and generation are reported by dcgm-exporter and nvidia_gpu_exporter."
_PODS = "Pods and their requests exist only in Kubernetes."
_LINKS = "Only the NVIDIA textfile collector reports single links."
_MIMIR = "Only if Mimir's own metrics are scraped into the same Mimir."

_WHY: Mapping[str, str] = {
    **dict.fromkeys(("XIDs by code", "XIDs by host", "XID log lines", "XIDs and recommended actions", "Incidents of GPUs"), _XID),
    **dict.fromkeys(("AMD driver events", "AMD driver events and recommended actions"), _AMD),
    "Time throttled": _THROTTLED,
    **dict.fromkeys(("GPUs by clock throttle reason", "Clock throttle reasons"), _THROTTLE),
    **dict.fromkeys(("SM clock", "Memory clock"), _TEXTFILE),
    **dict.fromkeys(("Remapped rows", "Row remapping state"), _REMAP),
    **dict.fromkeys(
        ("SM activity", "SM occupancy", "Tensor core activity", "DRAM activity", "Graphics engine activity"), _PROFILING
    ),
    **dict.fromkeys(("PCIe link width", "PCIe link generation"), _PCIE),
    **dict.fromkeys(
        (
            "Allocatable GPUs",
            "Pods and their GPUs",
            "Pending pods",
            "Pending GPU requests",
            "Allocated GPUs",
            "GPUs without a pod",
            "GPU power",
            "Pods by GPU utilization",
            "Pods by GPU memory used",
            "Pods by tensor core activity",
            "Pods by GPU power",
        ),
        _PODS,
    ),
    **dict.fromkeys(
        (
            *("Jobs", "Jobs on these GPUs", "Jobs with a GPU", "GPUs with a job", "GPUs without a job"),
            *("GPUs by account", "GPUs by user", "Jobs by GPU utilization, lowest", "Power by account"),
        ),
        "Jobs of Slurm, with `gpu-fleet:jobs`.",
    ),
    **dict.fromkeys(
        (
            *("Controller", "Scheduler cycle"),
            *("Running jobs", "Pending jobs", "GPUs asked for", "Longest wait", "Idle GPUs", "Unusable GPUs", "Partitions"),
            *("Sick nodes that take jobs", "Nodes out of service", "GPUs by state"),
            *("Nodes by state", "GPUs that pending jobs ask for", "Waiting jobs by reason", "Median wait of pending jobs"),
            *("Waits of jobs that began", "Mean wait of jobs that began, by account"),
            *("GPUs of running jobs by account", "GPUs asked for by account", "GPUs of running jobs by user"),
        ),
        "Slurm's queue, from the clusters whose stack has `jobs.queueHosts`.",
    ),
    **dict.fromkeys(("NVLink transmit per link", "NVLink receive per link"), _LINKS),
    **dict.fromkeys(("Failed rule evaluations", "In-memory series"), _MIMIR),
    "NVLink traffic": "nvidia_gpu_exporter does not report it; AMD GPUs have no NVLink.",
    **dict.fromkeys(("SXids and recommended actions", "Network adapter errors"), "That host logged none: empty is good."),
    "Active NVLinks, lowest GPU of each host": "Only the NVIDIA textfile collector reports links.",
    "NVLink errors": "Only dcgm-exporter reports them.",
    "PCIe traffic": "Requires the profiling counters of dcgm-exporter, NVML, or the NVIDIA textfile collector.",
    "PCIe replays": "Only dcgm-exporter and AMD's exporter report them.",
    **dict.fromkeys(
        ("Recovery action", "Recovery action by GPU", "GPUs with a recovery action"),
        "Reported by NVIDIA's driver since 560; empty is good where no GPU needs one.",
    ),
    "GPUs by registration with the fabric": "Reported by dcgm-exporter and nvidia_gpu_exporter, for GPUs of an NVLink fabric.",
    "Hosts with unreadable GPUs": "dcgm-exporter and AMD's exporter do not count the GPUs that they cannot read.",
    "Healthy nodes that are drained": "No host of these is healthy: empty is good.",
    "Lost GPUs": "No GPU of that host is lost: empty is good.",
    "Events": "Nothing happened to that host: empty is good.",
    "DCGM health watches": "Only DCGM has them.",
    "Video engines": "Reported by dcgm-exporter and nvidia_gpu_exporter.",
    **dict.fromkeys(
        ("GPU days between critical alerts", "GPUs with the most critical alerts", "Critical GPU alerts by kind"),
        "No GPU of that host had a critical alert: empty is good.",
    ),
    "Hosts with the most idle GPUs": "No GPU of that host is idle: empty is good.",
    "Allocated but idle GPUs": "No GPU of that host is idle with memory in use: empty is good.",
    "Age of GPU readings": "dcgm-exporter and AMD's exporter read at every scrape and report no timestamp.",
}

_ALL = "every exporter"
_ALL_BUT = "all but "
_HEAD = """\
# Panels by exporter

The tests run every query of every panel against a real Mimir and a real Loki for hosts of all exporter modes
(`tests/dashboards`). The panels below are empty in some modes; all others have data in every mode. An empty panel
shows the reason.

Generated by `pytest tests/dashboards --regen`; do not edit.

"""


def why_empty(panel: str) -> str:
    """Empty if no reason is known."""
    return _WHY.get(panel, "")


def empty_panels(page: str, mode: str) -> set[tuple[str, str]]:
    """Titles of dashboard and panel that are empty in `mode`, from the generated page."""
    rows = [line.strip("| \n").split(" | ") for line in page.splitlines() if line.startswith("| ")][2:]
    found = set()
    for panels, modes, _ in rows:
        board = ""
        for one in panels.split("; "):
            named, _, panel = one.rpartition(": ")
            board = named or board
            words = modes.removeprefix(_ALL_BUT).split("; ")
            if modes == _ALL or (MODES[mode].words in words) != modes.startswith(_ALL_BUT):
                found.add((_PREFIX + board, panel))
    return found


def _named(modes: set[str]) -> str:
    """Those that are empty, or the fewer that are not."""
    listed = {kind: "; ".join(mode.words for name, mode in MODES.items() if (name in modes) is kind) for kind in (True, False)}
    if modes == set(MODES):
        return _ALL
    return f"{_ALL_BUT}{listed[False]}" if len(modes) > len(MODES) / 2 else listed[True]


def written(empty: Mapping[tuple[str, str], set[str]]) -> str:
    """`empty`: titles of dashboard and panel to modes. A row has all panels with the same reason and modes, and the title of a
    dashboard before the first of its panels."""
    alike: dict[tuple[str, str], dict[str, list[str]]] = {}
    for (board, panel), modes in empty.items():
        alike.setdefault((_named(modes), why_empty(panel)), {}).setdefault(board.removeprefix(_PREFIX), []).append(panel)
    lines = [["Panels", "Empty with", "Why"], ["---"] * 3]
    for key, boards in alike.items():
        lines.append(["; ".join(f"{board}: {'; '.join(panels)}" for board, panels in boards.items()), *key])
    return _HEAD + "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
