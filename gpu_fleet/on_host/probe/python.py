"""The Python that runs this, for our other programs on the host."""

from __future__ import annotations

import sys
from typing import Mapping

from .host import Host


def probe(host: Host) -> Mapping[str, str]:
    """GPU_FLEET_PYTHON and GPU_FLEET_HAS_PYTHON, and neither on servers, as earlier releases: another line in the environment
    file restarts every service."""
    if host.setting("ROLE", "gpu") == "monitoring":
        return {}
    # That of the stack file may be a script, which sets something up first.
    return {"GPU_FLEET_PYTHON": host.setting("PYTHON") or sys.executable, "GPU_FLEET_HAS_PYTHON": "yes"}
