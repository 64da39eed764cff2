"""The machine at a glance, for people."""

from __future__ import annotations

from pathlib import Path

from lab.gpu.faults import healthy
from lab.gpu.machine import Gpu, Machine

_SHOWN = {
    "lost": "lost",
    "hang": "hangs",
    "ecc_corrected": "corrected ECC errors",
    "ecc_uncorrected": "uncorrected ECC errors",
    "remap_pending": "row remap pending",
    "remap_failed": "row remap failed",
    "links_down": "NVLinks down",
    "recovery_action": "recovery action",
    "temperature_c": "temperature pinned",
    "throttle": "throttled",
}


def render(state: Path) -> str:
    machine = Machine.load(state)
    stack = f"driver {machine.driver}" + (f", CUDA {machine.cuda}" if machine.cuda else f", ROCm {machine.rocm}")
    lines = [f"{machine.hostname}: {len(machine.gpus)} simulated GPUs, scenario {machine.scenario}, {stack}"]
    for gpu in machine.gpus:
        now = gpu.now()
        lines.append(
            f"  {gpu.index}  {gpu.pci_kernel}  {gpu.product['name']:<24} {gpu.load:<10} {now.utilization:5.0%} "
            f"{now.power_w:6.0f} W {now.temperature_c:4} C  {_faults(gpu)}"
        )
    if machine.driver_problem:
        lines.append(f"  the driver is broken: {machine.driver_problem}")
    if machine.stall_s:
        lines.append(f"  the driver answers {machine.stall_s:g} s late")
    for event in machine.xids:
        lines.append(f"  XID {event['code']} on GPU {event['gpu']}, {max(0, machine.at_s - event['at']):.0f} s ago")
    return "\n".join(lines)


def _faults(gpu: Gpu) -> str:
    well = healthy()
    broken = []
    for key, text in _SHOWN.items():
        value = gpu.faults[key]
        if value == well[key]:
            continue
        broken.append(
            text if value is True else f"{text}: {', '.join(map(str, value)) if isinstance(value, (list, dict)) else value}"
        )
    return "; ".join(broken) or "healthy"
