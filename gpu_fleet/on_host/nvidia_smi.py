"""What the programs for NVIDIA GPUs know together: of nvidia-smi, and of GPUs that it does not list."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Sequence

from .files import text_of

NO_HANDLE = "Unable to determine the device handle"


def only_readable(listing: str) -> list[str]:
    """Arguments for the GPUs that `nvidia-smi -L` lists; none, when it lists none.

    While a GPU has no handle, drivers until 555 at least answer for the others only when they are asked for by -i.
    """
    numbers = re.findall(r"^GPU (\d+): ", listing, re.MULTILINE)
    return ["-i", ",".join(numbers)] if numbers else []


def passed_through(root: str) -> Sequence[str]:
    """PCI addresses, as in the kernel log, of GPUs that a driver for guests has (vfio-pci, and nvgrace-gpu-vfio-pci for Grace).

    The driver of the host lists none of them, and nothing on the host measures them. Virtual functions of a GPU are not counted:
    it is itself on the host.
    """
    return sorted(
        device.name.rpartition(".")[0]
        for device in Path(root + "/sys/bus/pci/drivers").glob("*vfio-pci/*:*")
        if text_of(device / "vendor").strip() == "0x10de"
        and text_of(device / "class").startswith(("0x0300", "0x0302"))
        and not (device / "physfn").exists()
    )
