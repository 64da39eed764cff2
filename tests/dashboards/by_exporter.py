"""The page docs/dashboards-by-exporter.md: which panels are empty in which exporter mode, and why."""

from __future__ import annotations

from collections.abc import Mapping

from lab.showcase import MODES

_PREFIX = "GPU fleet / "
_XID = "XIDs are errors of NVIDIA's driver."
_HELD_BACK = "NVIDIA's exporters tell why clocks are low; AMD's and the textfile collectors do not."
_TEXTFILE = "The textfile collectors ask for use, memory, temperature and power alone."
_REMAP = "Rows are replaced by NVIDIA GPUs; the textfile collectors do not ask for it."
_PROFILING = "Needs the profiling counters of dcgm-exporter (`dcgm.counters: profiling`, or a cluster's `dcgm`)."
_PCIE = "PCIe links are told by dcgm-exporter and nvidia_gpu_exporter."
_PODS = "Pods and what they ask for exist in Kubernetes alone."
_LINKS = "Only the NVIDIA textfile collector tells links apart."
_MIMIR = "Where Mimir's own metrics are collected into the same Mimir."

_WHY: Mapping[str, str] = {
    **dict.fromkeys(("XID lines by code", "XID lines by host", "XID lines", "What they mean and ask for"), _XID),
    **dict.fromkeys(("GPUs held back, by reason", "Held back by"), _HELD_BACK),
    **dict.fromkeys(("SM clock", "Memory clock", "Memory temperature"), _TEXTFILE),
    **dict.fromkeys(("Uncorrectable memory errors", "Corrected memory errors"), _TEXTFILE),
    **dict.fromkeys(("Memory rows replaced", "State of the spare memory"), _REMAP),
    **dict.fromkeys(("Compute units at work", "Tensor cores at work", "Memory interface at work", "Engines at work"), _PROFILING),
    **dict.fromkeys(("PCIe lanes in use", "PCIe generation"), _PCIE),
    **dict.fromkeys(
        (
            "GPUs that pods may get",
            "Pods and their GPUs",
            "Pods that wait for GPUs",
            "GPUs held",
            "GPU power",
            "Busiest pods",
            "Pods by GPU memory",
            "Pods by tensor core use",
            "Pods by power",
        ),
        _PODS,
    ),
    **dict.fromkeys(("NVLink sent per link", "NVLink received per link"), _LINKS),
    **dict.fromkeys(("Rule evaluations that failed", "Series in memory"), _MIMIR),
    "NVLink traffic": "nvidia_gpu_exporter gives none; AMD GPUs have no NVLink.",
    "NVLink errors": "dcgm-exporter alone counts them.",
    "PCIe traffic": "Needs the profiling counters of dcgm-exporter, NVML, or the NVIDIA textfile collector.",
    "PCIe replays": "dcgm-exporter and AMD's exporter count them.",
    "What the driver asks for": "Told by NVIDIA's drivers since 570, and by no textfile collector.",
    "What DCGM's health watches say": "DCGM's own verdict.",
    "Video engines": "Told by dcgm-exporter and nvidia_gpu_exporter.",
    "Hosts with most idle GPUs": "Every GPU of that host works: empty is good.",
    "Memory held without work": "No program of that host holds memory without work: empty is good.",
    "Age of GPU readings": "dcgm-exporter and AMD's exporter read at every scrape and tell no time.",
}

_HEAD = """\
# Panels by exporter

Every query of every panel is asked of a real Mimir and a real Loki for hosts of all exporter modes (`tests/dashboards`). These
panels are empty in some of them; those that are not listed have data in all. Such a panel says itself why it is empty.

Written by `pytest tests/dashboards --regen`; do not edit.

"""


def why_empty(panel: str) -> str:
    """Empty where nobody has given a reason."""
    return _WHY.get(panel, "")


def empty_panels(page: str, mode: str) -> set[tuple[str, str]]:
    """Of a written page: dashboard's and panel's title of what is empty in `mode`."""
    rows = [line.strip("| \n").split(" | ") for line in page.splitlines() if line.startswith("| ")][2:]
    column = 2 + list(MODES).index(mode)
    return {(f"{_PREFIX}{cells[0]}", cells[1]) for cells in rows if cells[column] == "-"}


def written(empty: Mapping[tuple[str, str], set[str]]) -> str:
    """`empty`: dashboard's and panel's title to modes. `-` is an empty panel."""
    columns = ["Dashboard", "Panel", *(mode.words for mode in MODES.values()), "Why"]
    lines = [columns, ["---"] * len(columns)]
    for (board, panel), modes in empty.items():
        lines.append(
            [board.removeprefix(_PREFIX), panel, *("-" if mode in modes else "data" for mode in MODES), why_empty(panel)]
        )
    return _HEAD + "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
