"""What amdgpu shows of the GPUs of the machine in sysfs: errors by block (amdgpu_ras.c of Linux) and sensors (amdgpu_pm.c)."""

from __future__ import annotations

from pathlib import Path

from lab.gpu.amd.readings import present
from lab.gpu.machine import Machine

# label -> critical temperature in thousandths of a degree, as `amd-smi static --limit` of an MI300X has them.
CRITICAL = {"junction": 100_000, "mem": 105_000}


def write(prefix: Path, machine: Machine) -> None:
    """Below `prefix`/sys. Nothing on a machine without AMD GPUs."""
    if machine.vendor != "amd":
        return
    for gpu in present(machine):
        faults = gpu.gpu.faults
        files = {
            "ras/umc_err_count": f"ue: {faults['ecc_uncorrected']}\nce: {faults['ecc_corrected']}\n",
            "ras/gfx_err_count": "ue: 0\nce: 0\n",
        }
        for number, (label, limit) in enumerate(CRITICAL.items(), start=2):
            files |= {f"hwmon/hwmon0/temp{number}_label": f"{label}\n", f"hwmon/hwmon0/temp{number}_crit": f"{limit}\n"}
        for name, text in files.items():
            path = prefix / "sys/bus/pci/drivers/amdgpu" / gpu.bdf / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
