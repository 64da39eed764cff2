"""Which job has which GPU of a host: said by Slurm's prolog and epilog, corrected every 15 s; and Slurm's queue."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_fleet.host.part import Directory, File, FileCheck, Part, Unit
from gpu_fleet.host.parts.launch import HAS_GPUS

COMMAND = "/opt/gpu-fleet/bin/gpu-fleet-jobs"
START = "/opt/gpu-fleet/libexec/start-jobs"
HOOKS = ("/opt/gpu-fleet/libexec/slurm-jobs-prolog", "/opt/gpu-fleet/libexec/slurm-jobs-epilog")
MODULES = (
    *("on_host/jobs", "on_host/slurm_gpus", "on_host/slurm_job"),
    *("on_host/nccl_ras", "on_host/nccl_ranks", "on_host/nccl_late"),
)
STORE = "/run/gpu-fleet/jobs"
SAID = "/var/lib/gpu-fleet/textfile/jobs.prom"
ASKS_QUEUE = "GPU_FLEET_SLURM_QUEUE"
_QUEUE = "/opt/gpu-fleet/libexec/start-slurm-queue"
QUEUE_SAID = "/var/lib/gpu-fleet/textfile/slurm_queue.prom"
QUEUE_WAITS = "/var/lib/gpu-fleet/textfile/slurm_queue_waits.prom"


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """Those of Slurm. A host where Slurm does not run yet is deployed, and says so in its metrics."""

    def parts(self) -> tuple[Part, ...]:
        return self._of_gpus(), self._queue()

    def _queue(self) -> Part:
        """Of the whole cluster, on the hosts that the stack file names. An answer of Slurm is no condition here either."""
        return Part(
            name="slurm-queue",
            when={ASKS_QUEUE: ("yes",)},
            settings={ASKS_QUEUE: "no"},
            files=(File.from_rootfs(_QUEUE), File.python("on_host/slurm_queue"), File.python("on_host/slurm_waits")),
            units=(Unit(name="gpu-fleet-slurm-queue", timer=True, restart_on=("settings", _QUEUE)),),
            checks=(FileCheck(path=QUEUE_SAID, contains="gpu_fleet_slurm_timestamp_seconds", fresh_s=120),),
        )

    def _of_gpus(self) -> Part:
        return Part(
            name="jobs",
            when=HAS_GPUS,
            directories=(Directory(path=STORE, contents="runtime"),),
            files=(
                *map(File.from_rootfs, (COMMAND, START, *HOOKS)),
                *(File.python(module) for module in MODULES),
            ),
            units=(Unit(name="gpu-fleet-jobs", restart_on=("settings", START)),),
            checks=(FileCheck(path=SAID, contains="gpu_fleet_jobs_timestamp_seconds"),),
        )
