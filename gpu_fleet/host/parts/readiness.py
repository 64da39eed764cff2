"""Whether work may start on a host: evaluated every 30 s, for people, schedulers and Prometheus."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_fleet.host.part import PYTHON, Directory, File, FileCheck, Part, Unit, User
from gpu_fleet.host.parts import textfile
from gpu_fleet.host.parts.launch import HAS_GPUS

COMMAND = "/opt/gpu-fleet/bin/gpu-fleet-ready"
START = "/opt/gpu-fleet/libexec/start-ready"
SLURM = ("/opt/gpu-fleet/libexec/slurm-health-check", "/opt/gpu-fleet/libexec/slurm-prolog")
STATE = "/var/lib/gpu-fleet/ready"
TABLE = f"{PYTHON}/on_host/ready_table.json"
MODULES = ("on_host/ready", "on_host/slurm")
USER = "gpu-fleet-ready"


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """`table`: what decides, as on_host/ready.py reads it. `slurm`: what HealthCheckProgram does. `most_drained`: percent."""

    table: str
    slurm: str = "dry-run"
    most_drained: float = 5

    def part(self) -> Part:
        """After Alloy and the exporter, which it asks."""
        return Part(
            name="readiness",
            when=HAS_GPUS,
            users=(User(name=USER, groups=(textfile.USER,)),),
            directories=(Directory(path=STATE, owner=USER, group=USER, contents="runtime"),),
            files=(
                File.from_rootfs(COMMAND),
                File.from_rootfs(START),
                *map(File.from_rootfs, SLURM),
                *(File.python(module) for module in MODULES),
                File(path=TABLE, content=self.table.encode()),
            ),
            settings={"GPU_FLEET_READY_SLURM": self.slurm, "GPU_FLEET_READY_MOST_DRAINED": f"{self.most_drained:g}"},
            units=(Unit(name="gpu-fleet-ready", restart_on=("settings", START)),),
            checks=(FileCheck(path=f"{STATE}/ready.json", contains='"state"'),),
        )
