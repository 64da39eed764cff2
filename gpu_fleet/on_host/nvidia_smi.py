"""What the collectors for NVIDIA GPUs know of nvidia-smi together."""

from __future__ import annotations

import re

NO_HANDLE = "Unable to determine the device handle"


def only_readable(listing: str) -> list[str]:
    """Arguments for the GPUs that `nvidia-smi -L` lists; none, when it lists none.

    While a GPU has no handle, drivers until 555 at least answer for the others only when they are asked for by -i.
    """
    numbers = re.findall(r"^GPU (\d+): ", listing, re.MULTILINE)
    return ["-i", ",".join(numbers)] if numbers else []
