"""The simulated amd-smi of ROCm 6.2: list, static, metric, monitor and version, as text, --json or --csv."""

from __future__ import annotations

import json
import os
from typing import Any

from lab.gpu.amd.readings import Readings, present
from lab.gpu.machine import STATE_VARIABLE, Machine, NoMachine

HELP = """This is a simulated amd-smi of gpu-fleet's lab: a stand-in over simulated GPUs, no AMD driver.

usage: amd-smi list | static | metric | monitor | version [-g N ...] [--json | --csv]
  static: --asic --bus --vbios --limit --driver
  metric: --usage --power --temperature --clock --ecc --pcie --mem-usage --energy
  monitor: -p (power) -t (temperature) -u (utilization) -m (memory) -v (vram)"""

_MIB = 1024 * 1024
_VERSION = "24.6.2+2b02a07"


def main(arguments: list[str]) -> int:
    state = os.environ.get(STATE_VARIABLE)
    try:
        if not state:
            raise NoMachine(f"{STATE_VARIABLE} is not set; start it through the wrapper that lab.gpu.ensure makes")
        return _run(Machine.load(state), arguments)
    except NoMachine as missing:
        print(f"simulated amd-smi: {missing}")
        print("ERROR: Unable to detect any GPU devices, check amdgpu version and module status (sudo modprobe amdgpu)")
        return 255


def _run(machine: Machine, arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(HELP)
        return 0
    verb, rest = arguments[0], arguments[1:]
    form = next((name for name in ("json", "csv") if f"--{name}" in rest), "text")
    rest = [argument for argument in rest if argument not in ("--json", "--csv")]
    if verb == "version":
        tool = {"tool": "AMDSMI Tool", "version": _VERSION, "amdsmi_library_version": "24.6.2.0", "rocm_version": machine.rocm}
        print(json.dumps([tool], indent=4) if form == "json" else " | ".join(f"{key}: {value}" for key, value in tool.items()))
        return 0
    gpus, rest = _chosen(machine, rest)
    if not gpus:
        raise NoMachine("no GPU is left")
    if verb == "monitor":
        print(_monitor(gpus, rest))
        return 0
    documents = {"list": _list, "static": _static, "metric": _metric}
    if verb not in documents:
        print(f"usage: amd-smi [-h] ...\namd-smi: error: argument: invalid choice: '{verb}'")
        return 2
    records = []
    for gpu in gpus:
        sections = documents[verb](gpu, machine)
        asked = [option.lstrip("-").replace("-", "_") for option in rest]
        unknown = [option for option in asked if option not in sections]
        if unknown:
            print(f"AmdSmiInvalidParameterException: Parameter '{unknown[0]}' is invalid. Run '--help' for more info.")
            return 1
        records.append({"gpu": gpu.index, **{name: section for name, section in sections.items() if not asked or name in asked}})
    print({"json": _json, "csv": _csv, "text": _text}[form](records))
    return 0


def _chosen(machine: Machine, arguments: list[str]) -> tuple[list[Readings], list[str]]:
    gpus = present(machine)
    for option in ("-g", "--gpu"):
        if option in arguments:
            place = arguments.index(option)
            end = place + 1
            while end < len(arguments) and not arguments[end].startswith("-"):
                end += 1
            wanted = arguments[place + 1 : end]
            gpus = [gpu for gpu in gpus if wanted == ["all"] or str(gpu.index) in wanted]
            arguments = arguments[:place] + arguments[end:]
    return gpus, arguments


def _unit(value: Any, unit: str) -> dict[str, Any]:
    return {"value": value, "unit": unit}


def _list(gpu: Readings, _machine: Machine) -> dict[str, Any]:
    return {"bdf": gpu.bdf, "uuid": gpu.uuid}


def _static(gpu: Readings, machine: Machine) -> dict[str, Any]:
    return {
        "asic": {
            "market_name": gpu.product["name"],
            "vendor_id": "0x1002",
            "vendor_name": gpu.product["vendor"].replace(", ", " "),
            "subvendor_id": "0x1002",
            "device_id": gpu.product["card_model"],
            "rev_id": "0x00",
            "asic_serial": f"0x{gpu.unique_id[2:].upper()}",
            "oam_id": gpu.index,
        },
        "bus": {
            "bdf": gpu.bdf,
            "max_pcie_width": gpu.product["pcie"]["width"],
            "max_pcie_speed": _unit(32, "GT/s"),
            "pcie_interface_version": f"Gen {gpu.product['pcie']['gen']}",
            "slot_type": "OAM",
        },
        "vbios": {"name": "AMD MI300X_HW_SRIOV_CVS_1VF", "build_date": "2024/06/10 11:27", "part_number": gpu.product["vbios"]},
        "limit": {
            "max_power": _unit(gpu.power_limit_w, "W"),
            "min_power": _unit(0, "W"),
            "socket_power": _unit(gpu.power_limit_w, "W"),
            "slowdown_edge_temperature": "N/A",
            "slowdown_hotspot_temperature": _unit(100, "C"),
            "slowdown_vram_temperature": _unit(105, "C"),
            "shutdown_edge_temperature": "N/A",
            "shutdown_hotspot_temperature": _unit(110, "C"),
            "shutdown_vram_temperature": _unit(115, "C"),
        },
        "driver": {"name": "amdgpu", "version": machine.driver},
    }


def _metric(gpu: Readings, _machine: Machine) -> dict[str, Any]:
    faults = gpu.gpu.faults
    return {
        "usage": {
            "gfx_activity": _unit(gpu.busy_percent, "%"),
            "umc_activity": _unit(gpu.memory_busy_percent, "%"),
            "mm_activity": "N/A",
            "vcn_activity": [_unit(0, "%")] * 4,
        },
        "power": {
            "socket_power": _unit(gpu.power_w, "W"),
            "gfx_voltage": "N/A",
            "soc_voltage": "N/A",
            "mem_voltage": "N/A",
            "power_management": "ENABLED",
            "throttle_status": "THROTTLED" if gpu.throttled else "UNTHROTTLED",
        },
        "clock": {"gfx_0": _clock(gpu.sclk_mhz, 500, 2100), "mem_0": _clock(gpu.mclk_mhz, 900, 1300)},
        "temperature": {
            "edge": "N/A" if gpu.edge_c is None else _unit(gpu.edge_c, "C"),
            "hotspot": _unit(gpu.junction_c, "C"),
            "mem": _unit(gpu.memory_c, "C"),
        },
        "pcie": {"width": 16, "speed": _unit(32, "GT/s"), "bandwidth": _unit(18, "Mb/s"), "replay_count": faults["pcie_replays"]},
        "ecc": {
            "total_correctable_count": faults["ecc_corrected"],
            "total_uncorrectable_count": faults["ecc_uncorrected"],
            "total_deferred_count": 0,
            "cache_correctable_count": 0,
            "cache_uncorrectable_count": 0,
        },
        "energy": {"total_energy_consumption": _unit(round(gpu.energy_uj / 1e6, 3), "J")},
        "mem_usage": {
            "total_vram": _unit(gpu.vram_total // _MIB, "MB"),
            "used_vram": _unit(gpu.vram_used // _MIB, "MB"),
            "free_vram": _unit((gpu.vram_total - gpu.vram_used) // _MIB, "MB"),
        },
    }


def _clock(now: int, least: int, most: int) -> dict[str, Any]:
    return {
        "clk": _unit(now, "MHz"),
        "min_clk": _unit(least, "MHz"),
        "max_clk": _unit(most, "MHz"),
        "clk_locked": "DISABLED",
        "deep_sleep": "DISABLED",
    }


# ---- forms


def _json(records: list[dict[str, Any]]) -> str:
    return json.dumps(records, indent=4)


def _csv(records: list[dict[str, Any]]) -> str:
    """One column per leaf, named by the leaf alone as the real one does."""
    rows = [dict(_leaves(record)) for record in records]
    return "\n".join([",".join(rows[0]), *(",".join(str(value) for value in row.values()) for row in rows)])


def _leaves(value: Any, name: str = "") -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        return [(name, value)] if not isinstance(value, list) else [(name, "N/A")]
    if set(value) == {"value", "unit"}:
        return [(name, value["value"])]
    prefix = f"{name}_" if name.endswith("_0") else ""
    return [leaf for key, inner in value.items() for leaf in _leaves(inner, prefix + key)]


def _text(records: list[dict[str, Any]]) -> str:
    lines = []
    for record in records:
        lines.append(f"GPU: {record['gpu']}")
        lines += _lines({key: value for key, value in record.items() if key != "gpu"}, 1)
        lines.append("")
    return "\n".join(lines)


def _lines(mapping: dict[str, Any], depth: int) -> list[str]:
    lines = []
    for key, value in mapping.items():
        name = f"{'    ' * depth}{key.upper()}:"
        if isinstance(value, dict) and set(value) != {"value", "unit"}:
            lines += [name, *_lines(value, depth + 1)]
        else:
            lines.append(f"{name} {_shown(value)}")
    return lines


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_shown(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{value['value']} {'°C' if value['unit'] == 'C' else value['unit']}"
    return str(value)


# Letter -> columns: title, width, value.
_COLUMNS = {
    "p": [("POWER", lambda r: f"{r.power_w} W")],
    "t": [("GPU_TEMP", lambda r: f"{r.junction_c} °C"), ("MEM_TEMP", lambda r: f"{r.memory_c} °C")],
    "u": [("GFX_UTIL", lambda r: f"{r.busy_percent} %"), ("GFX_CLOCK", lambda r: f"{r.sclk_mhz} MHz")],
    "m": [("MEM_UTIL", lambda r: f"{r.memory_busy_percent} %"), ("MEM_CLOCK", lambda r: f"{r.mclk_mhz} MHz")],
    "v": [("VRAM_USED", lambda r: f"{r.vram_used // _MIB} MB"), ("VRAM_TOTAL", lambda r: f"{r.vram_total // _MIB} MB")],
}


def _monitor(gpus: list[Readings], options: list[str]) -> str:
    asked = "".join(option.lstrip("-") for option in options if option.startswith("-") and not option.startswith("--"))
    columns = [column for letter in "ptumv" if letter in (asked or "ptum") for column in _COLUMNS[letter]]
    lines = ["GPU" + "".join(f"{title:>{len(title) + 2}}" for title, _ in columns)]
    lines += [f"{gpu.index:>3}" + "".join(f"{value(gpu):>{len(title) + 2}}" for title, value in columns) for gpu in gpus]
    return "\n".join(lines)
