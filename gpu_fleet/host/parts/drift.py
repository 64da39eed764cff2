"""A timer on the host that compares it with the state after the last apply: drift is a metric, and needs no SSH.

It repairs nothing: the next `up`, or the next run of gpu-fleet-pull, does that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from gpu_fleet.host.part import File, Part, Unit
from gpu_fleet.host.parts.textfile import DIRECTORY

START = "/opt/gpu-fleet/libexec/start-check"
METRICS = f"{DIRECTORY}/fleet_check.prom"
BUNDLE = f"{DIRECTORY}/fleet_bundle.prom"


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Metrics: gpu_fleet_drift_items{part}, gpu_fleet_check_success, gpu_fleet_check_timestamp_seconds,
    gpu_fleet_bundle_info{bundle}.

    `others`: the parts beside this one. While a rollout is under way, hosts that have the same are what can be compared.
    """

    others: Sequence[Part] = ()

    def part(self) -> Part:
        bundle = hashlib.sha256(repr(self.others).encode()).hexdigest()[:12]
        info = (
            "# HELP gpu_fleet_bundle_info What is placed on this host; the same on hosts that have the same.\n"
            "# TYPE gpu_fleet_bundle_info gauge\n"
            f'gpu_fleet_bundle_info{{bundle="{bundle}"}} 1\n'
        )
        return Part(
            name="drift",
            files=(File.from_rootfs(START), File(path=BUNDLE, content=info.encode())),
            units=(Unit(name="gpu-fleet-check", timer=True, restart_on=(START,)),),
        )
