"""`nvidia-smi lab-nvml`: values that only the driver library provides, as JSON for the lab's exporters. No real nvidia-smi has
it.
"""

from __future__ import annotations

import json

from lab.gpu.machine import Gpu, Machine

MIB = 1024 * 1024


def document(machine: Machine) -> str:
    uuids = [gpu.uuid for gpu in machine.gpus]
    return json.dumps(
        {
            "xids": [{"uuid": uuids[event["gpu"]], "code": event["code"], "at": event["at"]} for event in machine.xids],
            "gpus": [_gpu(gpu) for gpu in machine.gpus if not gpu.lost],
        }
    )


def _gpu(gpu: Gpu) -> dict:
    now = gpu.now()
    return {
        "uuid": gpu.uuid,
        "energy_j": round(now.energy_j, 3),
        "pcie_rx_bytes_s": now.pcie_rx_mb_s * 1_000_000,
        "pcie_tx_bytes_s": now.pcie_tx_mb_s * 1_000_000,
        "mig": [_instance(part, now.memory_used_ratio) for part in gpu.mig],
    }


def _instance(part: dict, used_ratio: float) -> dict:
    total = part["memory_mib"] * MIB
    used = int(total * used_ratio)
    return {
        "gi": str(part["gi"]),
        "ci": str(part["ci"]),
        "uuid": part["uuid"],
        "profile": part["profile"],
        "total_bytes": total,
        "used_bytes": used,
        "reserved_bytes": 0,
        "free_bytes": total - used,
    }
