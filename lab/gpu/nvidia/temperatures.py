"""`nvidia-smi -q -d TEMPERATURE`, the one part of -q that collectors read."""

from __future__ import annotations

import time

from lab.gpu.machine import Gpu, Machine
from lab.gpu.nvidia.fields import Answers, bus_id


def text(machine: Machine, gpus: list[Gpu]) -> str:
    stamp = time.strftime("%a %b %e %H:%M:%S %Y", time.localtime(machine.at_s))
    lines = ["", "==============NVSMI LOG==============", ""]
    lines += [_line(machine, label, value) for label, value in _head(machine, stamp)]
    lines.insert(-1, "")
    for gpu in gpus:
        lines += [f"GPU {bus_id(gpu)}", "    Temperature"]
        lines += [_line(machine, f"        {label}", value) for label, value in _temperatures(gpu)]
        lines.append("")
    return "\n".join(lines)


def _head(machine: Machine, stamp: str) -> list[tuple[str, str]]:
    return [
        ("Timestamp", stamp),
        ("Driver Version", machine.driver),
        ("CUDA Version", str(machine.cuda)),
        ("Attached GPUs", str(len(machine.gpus))),
    ]


def _line(machine: Machine, label: str, value: str) -> str:
    return f"{label:<{42 if machine.driver_major < 580 else 55}}: {value}"


def _temperatures(gpu: Gpu) -> list[tuple[str, str]]:
    """From Ada on, limits are margins: how far the GPU is from where it slows down. Source: recorded outputs of 565 to 610."""
    answers, limit = Answers(gpu), gpu.product["temperature_c"]["limit"]
    major, margins = gpu.machine.driver_major, gpu.has("temperature_margins")
    memory, margin = answers["temperature.memory"], answers["temperature.gpu.tlimit"]
    kind = "T.Limit Temp" if margins else "Temp"
    limits = (-8, -2, 0) if margins else (limit + 5, limit, limit - 4)
    lines = [
        ("GPU Current Temp", f"{answers['temperature.gpu']} C"),
        (f"GPU {'Current ' if major >= 610 else ''}T.Limit Temp", f"{margin} C" if margins else "N/A"),
    ]
    lines += [(f"GPU {name} {kind}", f"{celsius} C") for name, celsius in zip(_LIMITS, limits)]
    return [
        *lines,
        ("GPU Target Temperature" + (" Specification" if major >= 610 else ""), "N/A"),
        ("Memory Current Temp", "N/A" if memory == "N/A" else f"{memory} C"),
        (f"Memory Max Operating {kind}", "0 C" if margins and memory != "N/A" else "N/A"),
    ]


_LIMITS = ("Shutdown", "Slowdown", "Max Operating")
