"""All NVIDIA GPUs: NVLink traffic per link; links, NVLink domain and PCIe traffic per GPU. Fails when nothing could be read.

NVLink: `nvlink -gt d` prints one line per direction, in KiB. Older drivers have only `nvlink -g 0`, with both directions on one
line in KBytes, which counts only after an administrator has set counter 0 (`nvidia-smi nvlink -sc 0bz`).
`nvlink -s` prints a speed per link in GB/s, or <inactive>; the number of active links and the slowest speed are reported per
GPU.
Domain: the fabric fields of --query-gpu, which drivers until 555 lack; a cluster UUID of zeros is a fabric within one host. A
registration that is complete may have failed: its status says so, and no exporter but DCGM's reads it. A GPU that has left its
fabric says what one without a fabric says (leptonai/gpud pull request 1108), and so does one in MIG mode, which has no NVLinks.
Guests: GPUs that a driver for guests has, of which nothing else is known here. A host may have no others.
RDMA: the ports of /sys/class/infiniband, counted: node_exporter reports none where it cannot read one file of one adapter.
PCIe: `dmon -s t` prints MB/s, with the names of the columns in its first line. Units are taken as printed: KiB are 1024 bytes;
KBytes, MB and GB are powers of 1000.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import AbstractSet, Iterator, Tuple

from ..metrics import Metrics
from ..nvidia_smi import NO_HANDLE, only_readable, passed_through
from ..tools import CollectError, Tools

PATIENCE_S = 3  # five runs within the interval of 15 s; dmon alone takes one second
KB, KIB, MB, GB = 1e3, 2**10, 1e6, 1e9
FABRIC = "index,fabric.cliqueId,fabric.clusterUuid,fabric.state,fabric.status,mig.mode.current"
_STATES = {"not started": 1, "in progress": 2, "completed": 3}  # NVML's; 4 as in DCGM: failed
_NONE = ("n/a", "[n/a]", "not supported", "[not supported]")
Sample = Tuple[str, float, Tuple[str, ...]]  # metric, value, values of its labels


def collect(tools: Tools, metrics: Metrics) -> None:
    root = os.environ.get("GPU_FLEET_PREFIX", "")
    of_guests = passed_through(root)
    for address in of_guests:
        metrics.add("passed_through", 1, address)
    if of_guests and not list(Path(root + "/sys/bus/pci/drivers/nvidia").glob("*:*")):
        return
    nvidia_smi = tools.find("nvidia-smi")
    only: list[str] = []

    def ask(*arguments: str) -> str:
        return tools.ask(PATIENCE_S, [nvidia_smi, *arguments, *only]).text

    links = ask("nvlink", "-gt", "d")
    if "Data Tx" not in links and NO_HANDLE in links:
        only = only_readable(ask("-L"))
        links = ask("nvlink", "-gt", "d") if only else links
    if "Data Tx" not in links:
        links = ask("nvlink", "-g", "0")
    status = list(parse_status(ask("nvlink", "-s")))
    samples = [
        *parse_traffic(links),
        *status,
        *parse_fabric(ask(f"--query-gpu={FABRIC}", "--format=csv,noheader"), {labels[0] for _, _, labels in status}),
        *parse_pcie(ask("dmon", "-s", "t", "-c", "1")),
    ]
    if not samples:
        raise CollectError("nvidia-smi reported no links and no PCIe traffic")
    for name, value, labels in samples:
        metrics.add(name, value, *labels)
    ports = list(Path(root + "/sys/class/infiniband").glob("*/ports/*"))
    if ports:
        metrics.add("rdma_ports", len(ports))


def parse_traffic(text: str) -> Iterator[Sample]:
    """Of `nvlink -gt d` and of `nvlink -g 0`."""
    for gpu, line in _by_gpu(text):
        new = re.search(r"Link (\d+): Data ([TR])x: (\d+) KiB", line)
        old = re.search(r"Link (\d+): Rx0: (\d+) KBytes, Tx0: (\d+) KBytes", line)
        if new:
            direction = "transmit" if new[2] == "T" else "receive"
            yield f"nvlink_{direction}_bytes_total", int(new[3]) * KIB, (gpu, new[1])
        elif old:
            yield "nvlink_receive_bytes_total", int(old[2]) * KB, (gpu, old[1])
            yield "nvlink_transmit_bytes_total", int(old[3]) * KB, (gpu, old[1])


def parse_status(text: str) -> Iterator[Sample]:
    """Of `nvlink -s`."""
    speeds: dict[str, list[float]] = {}  # of the active links, by GPU
    for gpu, line in _by_gpu(text):
        link = re.search(r"Link \d+: (?:([0-9.]+) GB/s|<inactive>)", line)
        if link:
            speeds.setdefault(gpu, []).extend([float(link[1])] if link[1] else [])
        elif "links are inactive" in line.lower():
            speeds.setdefault(gpu, [])
    for gpu, active in speeds.items():
        yield "nvlinks_active", len(active), (gpu,)
        if active:
            yield "nvlink_speed_bytes_per_second", min(active) * GB, (gpu,)


def parse_fabric(text: str, linked: AbstractSet[str]) -> Iterator[Sample]:
    """`linked`: GPUs with NVLinks, active or not; others can have no fabric."""
    for line in text.splitlines():
        gpu, clique, cluster, state, status, mig = [*re.split(r" *, *", line.strip()), *[""] * 6][:6]
        if not gpu.isdigit():
            continue
        if clique.isdigit() and re.fullmatch(r"[0-9a-fA-F-]*[1-9a-fA-F][0-9a-fA-F-]*", cluster):
            yield "fabric_info", 1, (gpu, cluster, clique)
        code = _STATES.get(state.lower())
        if gpu in linked and state.lower() in _NONE and mig.lower() != "enabled":
            yield "fabric_state", 0, (gpu,)
        elif code:
            has_failed = code == 3 and status.lower() not in ("success", "n/a", "[n/a]", "")
            yield "fabric_state", 4 if has_failed else code, (gpu,)


def parse_pcie(text: str) -> Iterator[Sample]:
    columns: list[str] = []
    for line in text.splitlines():
        cells = line.split()
        if re.match(r"# *gpu ", line):
            columns = line.lstrip("# ").split()  # the rows have no "#"
        elif cells and cells[0].isdigit() and "rxpci" in columns:
            row = dict(zip(columns, cells))
            for column, direction in (("rxpci", "receive"), ("txpci", "transmit")):
                if row.get(column, "").isdigit():
                    yield f"pcie_{direction}_bytes_per_second", int(row[column]) * MB, (row["gpu"],)


def _by_gpu(text: str) -> Iterator[tuple[str, str]]:
    """Each line with the GPU that the headers above it name."""
    gpu = ""
    for line in text.splitlines():
        header = re.match(r"GPU (\d+):", line)
        if header:
            gpu = header[1]
        elif gpu:
            yield gpu, line
