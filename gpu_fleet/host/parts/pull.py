"""Keeps a self-provisioning host converged: it fetches the same bundle that hosts reached by SSH get.

It is in every bundle and wanted only where the installer set GPU_FLEET_MODE, so that push and pull have the same bytes. How a
host was installed (origin, public key, options) is in its settings: GPU_FLEET_PULL_*.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_fleet.host.part import Directory, File, Part, Unit
from gpu_fleet.host.program import pull_modules, zipped

PROGRAM = "/opt/gpu-fleet/bin/gpu-fleet-pull"
ZIP = "/opt/gpu-fleet/lib/pull.pyz"  # one file, so that a run that is cut off leaves all of the old program or all of the new one
STATE = "/var/lib/gpu-fleet/pull"


@dataclass(frozen=True, kw_only=True)
class Pull:
    def part(self) -> Part:
        return Part(
            name="pull",
            when={"GPU_FLEET_MODE": ("pull",)},
            # The last good publication, with its secrets.
            directories=(Directory(path=STATE, mode=0o700, contents="runtime"),),
            files=(File(path=ZIP, content=zipped(pull_modules())), File.from_rootfs(PROGRAM)),
            settings={"GPU_FLEET_MODE": "push"},
            # Not restarted when the program changes: the program itself may be making the change, and each run is a new process.
            units=(Unit(name="gpu-fleet-pull", timer=True),),
        )
