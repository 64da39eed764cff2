"""A timer on the host that compares it with the state after the last apply: drift is a metric, and needs no SSH.

It repairs nothing: the next `up`, or the next run of gpu-fleet-pull, does that.
"""

from __future__ import annotations

from dataclasses import dataclass

from host.part import File, Part, Unit
from host.parts.textfile import DIRECTORY

START = "/opt/gpu-fleet/libexec/start-check"
METRICS = f"{DIRECTORY}/fleet_check.prom"


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Metrics: gpu_fleet_drift_items{part}, gpu_fleet_check_success, gpu_fleet_check_timestamp_seconds."""

    def part(self) -> Part:
        return Part(
            name="drift",
            files=(File.from_rootfs(START),),
            units=(Unit(name="gpu-fleet-check", timer=True, restart_on=(START,)),),
        )
