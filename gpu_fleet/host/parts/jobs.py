"""Which job has which GPU of a host: said by Slurm's prolog and epilog, corrected every 15 s."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_fleet.host.part import Directory, File, FileCheck, Part, Unit
from gpu_fleet.host.parts.launch import HAS_GPUS

COMMAND = "/opt/gpu-fleet/bin/gpu-fleet-jobs"
START = "/opt/gpu-fleet/libexec/start-jobs"
HOOKS = ("/opt/gpu-fleet/libexec/slurm-jobs-prolog", "/opt/gpu-fleet/libexec/slurm-jobs-epilog")
MODULES = ("on_host/jobs", "on_host/slurm_gpus")
STORE = "/run/gpu-fleet/jobs"
SAID = "/var/lib/gpu-fleet/textfile/jobs.prom"


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """Those of Slurm. A host where Slurm does not run yet is deployed, and says so in its metrics."""

    def part(self) -> Part:
        return Part(
            name="jobs",
            when=HAS_GPUS,
            directories=(Directory(path=STORE, contents="runtime"),),
            files=(
                *map(File.from_rootfs, (COMMAND, START, *HOOKS)),
                *(File.python(module) for module in MODULES),
            ),
            units=(Unit(name="gpu-fleet-jobs", timer=True, restart_on=("settings", START)),),
            checks=(FileCheck(path=SAID, contains="gpu_fleet_jobs_timestamp_seconds"),),
        )
