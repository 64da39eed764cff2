"""The stand-in of AMD's device-metrics-exporter 1.5 (unit amd-metrics-exporter, port 5000) over simulated GPUs.

Metrics are those that the support matrix gives for MI2xx and MI3xx on bare metal and that our rules and the exporter's own
dashboards use. Labels: the mandatory ones, and those that the config file asks for. Not done: the profiler's metrics, NICs,
partitions, Kubernetes and Slurm (their labels are there and empty).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.gpu.amd.readings import Readings, present
from lab.gpu.machine import STATE_VARIABLE, Machine, NoMachine
from lab.gpu.serve import CannotListen, serve

VERSION = "v1.5.2"
PORT = 5000
CONFIG = "/etc/metrics/config.json"
_MB = 1024 * 1024

HELP = f"""Stand-in of AMD's device-metrics-exporter {VERSION}, of gpu-fleet's lab: simulated GPUs, not AMD's program.

  -amd-metrics-config FILE   JSON: ServerPort, GPUConfig.Fields, GPUConfig.Labels, CommonConfig.MetricsFieldPrefix
  -bind ADDRESS              bind address, 0.0.0.0
  -version"""

Value = float | int
_OPTIONAL_LABELS: dict[str, Callable[[Readings], str]] = {
    "GPU_UUID": lambda gpu: gpu.uuid,
    "CARD_SERIES": lambda gpu: gpu.product["name"],
    "CARD_VENDOR": lambda gpu: gpu.product["vendor"],
    "DRIVER_VERSION": lambda gpu: gpu.gpu.machine.driver,
    "VBIOS_VERSION": lambda gpu: gpu.product["vbios"],
}


def _healthy(gpu: Readings) -> int:
    return 0 if gpu.gpu.faults["ecc_uncorrected"] else 1


# name -> help, reading
_METRICS: dict[str, tuple[str, Callable[[Readings], Value | None]]] = {
    "gpu_health": ("Health of the GPU (0 = Unhealthy | 1 = Healthy)", _healthy),
    "gpu_package_power": ("Current socket power in Watts", lambda gpu: gpu.power_w),
    "gpu_average_package_power": ("Average package power in Watts", lambda gpu: gpu.power_w if gpu.is_mi2xx else None),
    "gpu_power_usage": ("Power usage in Watts", lambda gpu: gpu.power_w),
    "gpu_energy_consumed": ("Accumulated energy consumed by the GPU in uJ", lambda gpu: gpu.energy_uj),
    "gpu_edge_temperature": ("Current edge temperature in Celsius", lambda gpu: gpu.edge_c),
    "gpu_junction_temperature": (
        "Current junction/hotspot temperature in Celsius",
        lambda gpu: None if gpu.is_mi2xx else gpu.junction_c,
    ),
    "gpu_memory_temperature": ("Current memory temperature in Celsius", lambda gpu: gpu.memory_c),
    "gpu_gfx_activity": ("Graphics engine usage in Percentage (0-100)", lambda gpu: gpu.busy_percent),
    "gpu_umc_activity": ("Memory engine usage in Percentage (0-100)", lambda gpu: gpu.memory_busy_percent),
    "gpu_total_vram": ("Total VRAM memory of the GPU (in MB)", lambda gpu: gpu.vram_total // _MB),
    "gpu_used_vram": ("Used VRAM memory of the GPU (in MB)", lambda gpu: gpu.vram_used // _MB),
    "gpu_free_vram": ("Free VRAM memory of the GPU (in MB)", lambda gpu: (gpu.vram_total - gpu.vram_used) // _MB),
    "gpu_ecc_correct_total": ("Correctable error count", lambda gpu: gpu.gpu.faults["ecc_corrected"]),
    "gpu_ecc_uncorrect_total": ("Uncorrectable error count", lambda gpu: gpu.gpu.faults["ecc_uncorrected"]),
    "gpu_ecc_deferred_total": ("Deferred error count", lambda gpu: 0),
    "gpu_ecc_correct_umc": ("Correctable error count in UMC block", lambda gpu: gpu.gpu.faults["ecc_corrected"]),
    "gpu_ecc_uncorrect_umc": ("Uncorrectable error count in UMC block", lambda gpu: gpu.gpu.faults["ecc_uncorrected"]),
    "pcie_speed": ("Current PCIe speed in GT/s", lambda gpu: 32),
    "pcie_max_speed": ("Maximum PCIe speed in GT/s", lambda gpu: 32),
    "pcie_bandwidth": ("Current PCIe bandwidth in Mb/s", lambda gpu: gpu.gpu.now().pcie_rx_mb_s * 8),
    "pcie_replay_count": ("Total number of PCIe replays", lambda gpu: gpu.gpu.faults["pcie_replays"]),
    "pcie_recovery_count": ("Total number of PCIe recoveries", lambda gpu: 0),
    **{
        f"gpu_violation_{name}_residency_percentage": (
            f"Share of time in which {name} limited the clocks",
            lambda gpu, reason=reason: 100 if reason in gpu.gpu.faults["throttle"] else 0,
        )
        for name, reason in (
            ("ppt", "sw_power_cap"),
            ("socket_thermal", "hw_thermal_slowdown"),
            ("vr_thermal", None),
            ("hbm_thermal", None),
            ("processor_hot", "hw_power_brake_slowdown"),
        )
    },
}
_MI3XX_ONLY = {
    "gpu_package_power",
    "gpu_junction_temperature",
    "pcie_bandwidth",
    "pcie_replay_count",
    "pcie_recovery_count",
    *(name for name in _METRICS if name.startswith("gpu_violation_")),
}
_CLOCKS: tuple[tuple[str, str, Callable[[Readings], int]], ...] = (
    ("0", "system", lambda gpu: gpu.sclk_mhz),
    ("8", "memory", lambda gpu: gpu.mclk_mhz),
)


def render(machine: Machine, config: dict[str, Any]) -> str:
    gpu_config = config.get("GPUConfig", {})
    prefix = config.get("CommonConfig", {}).get("MetricsFieldPrefix", "")
    wanted = {field.lower() for field in gpu_config.get("Fields", [])}
    asked = [label for label in gpu_config.get("Labels", []) if label in _OPTIONAL_LABELS]
    gpus = [(gpu, _labels(gpu, asked)) for gpu in present(machine)]
    lines: list[str] = []

    def family(name: str, help_: str, all_samples: list[tuple[dict[str, str], Value | None]]) -> None:
        samples = [(labels, value) for labels, value in all_samples if value is not None]
        if samples and (not wanted or name in wanted):
            lines.extend([f"# HELP {prefix}{name} {help_}", f"# TYPE {prefix}{name} gauge"])
            lines.extend(f"{prefix}{name}{{{_inner(labels)}}} {value}" for labels, value in samples)

    family("gpu_nodes_total", "Number of GPUs in the node", [({"hostname": machine.hostname}, len(gpus))])
    for name, (help_, read) in _METRICS.items():
        family(name, help_, [(labels, read(gpu)) for gpu, labels in gpus if not (gpu.is_mi2xx and name in _MI3XX_ONLY)])
    clocks = [
        ({**labels, "clock_index": index, "clock_type": kind}, read(gpu)) for gpu, labels in gpus for index, kind, read in _CLOCKS
    ]
    family("gpu_clock", "Clock measure of the GPU in Mhz", clocks)
    for direction in ("rx", "tx"):
        links = [({**labels, "link_index": str(link)}, _link_bytes(gpu, link)) for gpu, labels in gpus for link in range(8)]
        family(f"gpu_xgmi_link_{direction}", f"XGMI link data {direction} in KB", links)
    return "".join(f"{line}\n" for line in lines)


def _link_bytes(gpu: Readings, link: int) -> int:
    """Link 0 leads to the GPU itself."""
    return 0 if link == 0 else gpu.energy_uj // 200_000 + link


def _labels(gpu: Readings, asked: list[str]) -> dict[str, str]:
    work = dict.fromkeys(("pod", "namespace", "container", "job_id", "job_user", "job_partition"), "")
    return {
        "gpu_id": str(gpu.index),
        "card_model": gpu.product["card_model"],
        "gpu_partition_id": "0",
        "gpu_compute_partition_type": "spx",
        "gpu_memory_partition_type": "nps1",
        "deployment_mode": "baremetal",
        "serial_number": gpu.serial,
        "hostname": gpu.gpu.machine.hostname,
        **work,
        **{label.lower(): _OPTIONAL_LABELS[label](gpu) for label in asked},
    }


def _inner(labels: dict[str, str]) -> str:
    return ",".join(f'{key}="{text}"' for key, text in sorted(labels.items()))


def main(arguments: list[str]) -> int:
    options = {"amd-metrics-config": CONFIG, "bind": "0.0.0.0"}
    left = list(arguments)
    while left:
        name, equals, value = left.pop(0).lstrip("-").partition("=")
        if name in ("h", "help"):
            print(HELP)
            return 0
        if name == "version":
            print(f"Version : {VERSION}\nDeployment: simulated GPUs of gpu-fleet's lab")
            return 0
        if name in options and (equals or left):
            options[name] = value if equals else left.pop(0)
        else:  # the real one continues as well
            print(f"Warning: flag provided but not defined: -{name} - continuing with supported flags", file=sys.stderr)
    try:
        state = os.environ.get(STATE_VARIABLE)
        if not state:
            raise NoMachine(f"{STATE_VARIABLE} is not set: start it through the wrapper that lab.gpu.ensure makes")
        if Machine.load(state).vendor != "amd":
            raise NoMachine("this machine has no AMD GPU")
        path = Path(options["amd-metrics-config"])
        config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        port = int(config.get("ServerPort", PORT))
        answers = {"/metrics": lambda: render(Machine.load(state), config)}
        serve(
            options["bind"],
            port,
            answers,
            listening=lambda: print(f"serving requests on port {port}", file=sys.stderr, flush=True),
        )
    except (NoMachine, CannotListen, json.JSONDecodeError) as error:
        print(f"amd-metrics-exporter: {error}", file=sys.stderr)
        return 1
    return 0
