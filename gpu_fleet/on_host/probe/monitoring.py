"""Whether a host can be a monitoring server. Memory is that of docs/monitoring-server.md for one GPU host."""

from __future__ import annotations

import re
from typing import Mapping

from .host import Host, Refusal

UNSUPPORTED = 12
LEAST_MIB = 1800


def probe(host: Host) -> Mapping[str, str]:
    """GPU_FLEET_MONITORING_MEMORY_MIB."""
    if host.prefix or not host.path("/run/systemd/system").is_dir():
        raise Refusal(UNSUPPORTED, "a monitoring server needs systemd; use a VM or a bare-metal host for role: monitoring")
    total = re.search(r"^MemTotal: *(\d+) kB", host.text("/proc/meminfo"), re.MULTILINE)
    memory_mib = int(total[1]) // 1024 if total else 0
    if memory_mib < LEAST_MIB:
        reason = f"a monitoring server needs 2 GiB of memory at least, and this host has {memory_mib} MiB"
        raise Refusal(UNSUPPORTED, reason)
    return {"GPU_FLEET_MONITORING_MEMORY_MIB": str(memory_mib)}
