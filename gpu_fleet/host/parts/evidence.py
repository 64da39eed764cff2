"""What a broken host says, collected by a command before a reset or a reboot, and kept within a bound."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_fleet.host.part import Directory, File, Part
from gpu_fleet.host.parts.launch import HAS_GPUS

COMMAND = "/opt/gpu-fleet/bin/gpu-fleet-evidence"
DIRECTORY = "/var/lib/gpu-fleet/evidence"


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """`keep`: archives on a host, of at most 64 MiB each."""

    keep: int = 5

    def part(self) -> Part:
        return Part(
            name="evidence",
            when=HAS_GPUS,
            directories=(Directory(path=DIRECTORY, mode=0o700, contents="runtime"),),
            files=(File.from_rootfs(COMMAND), File.python("on_host/evidence")),
            settings={"GPU_FLEET_EVIDENCE_KEEP": str(self.keep)},
        )
