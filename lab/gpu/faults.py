"""The current faults of a simulated machine: `faults.json` in its state directory.

One record per GPU, plus the XIDs that happened. Writers (inject.py) hold a lock and replace the file, so a tool reads the state
before or after a fault, never half of it. Standard library only: nvidia-smi reads it on every run.
"""

from __future__ import annotations

import json
from pathlib import Path

FILE = "faults.json"

# What `clocks_event_reasons` calls them, with their bit. Source: NVML, nvmlClocksEventReasons.
THROTTLES = {
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal_slowdown": 0x20,
    "hw_thermal_slowdown": 0x40,
    "hw_power_brake_slowdown": 0x80,
}
DRIVER_PROBLEMS = ("not-loaded", "version-mismatch")
RECOVERY_ACTIONS = ("None", "GPU Reset", "Node Reboot", "Drain P2P", "Drain and Reset")  # index: NVML's number

_HEALTHY = {
    "lost": False,
    "hang": False,
    "temperature_c": None,  # pinned by `hot`
    "throttle": {},  # reason -> unix time since when
    "throttled_us": {},  # reason -> microseconds of throttling that has ended
    "ecc_corrected": 0,
    "ecc_uncorrected": 0,
    "remapped_correctable": 0,
    "remapped_uncorrectable": 0,
    "remap_pending": False,
    "remap_failed": False,
    "retired_sbe": 0,
    "retired_dbe": 0,
    "retire_pending": False,
    "recovery_action": "None",
    "links_down": [],
    "link_errors": {},  # link -> {"replay": n, "recovery": n, "crc": n}
    "pcie_replays": 0,
    "nvml": {},  # key of lab/gpu/nvml/nvml.c -> its answer, such as {"handle": "!999"}; only the real nvidia-smi asks
}


def healthy() -> dict:
    return {name: value.copy() if isinstance(value, (dict, list)) else value for name, value in _HEALTHY.items()}


def none() -> dict:
    """A machine without faults."""
    return {"gpus": {}, "xids": [], "driver": "", "stall_s": 0}


def read(state: str) -> dict:
    """`gpus`: records by index, GPUs without one are healthy; `xids`: {"gpu", "code", "at"} each; `driver`: "" or one of
    DRIVER_PROBLEMS; `stall_s`: the delay of every response of the driver."""
    try:
        return {**none(), **json.loads(Path(state, FILE).read_text(encoding="utf-8"))}
    except FileNotFoundError:
        return none()


def of_gpu(faults: dict, gpu: int) -> dict:
    return {**healthy(), **faults["gpus"].get(str(gpu), {})}


def record(faults: dict, gpu: int) -> dict:
    """The GPU's record, to be modified in place."""
    return faults["gpus"].setdefault(str(gpu), healthy())
