"""An existing cron job with get_gpu_metrics.sh, from a guide for Debian: found, and replaced when the stack file says so.

Our textfile collector writes the same metrics (textfile.py). Replaced means that two files are ours until the host is removed:
the cron entry and the last readings, both empty. The converge program keeps the originals and restores them with the removal. The
script stays, and nothing runs it.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_fleet.host.part import File, Part

FILES = ("/etc/cron.d/prometheus_gpu_metrics", "/var/lib/prometheus/node-exporter/gpu_metrics.prom")


@dataclass(frozen=True, kw_only=True)
class OldCollector:
    """Facts: GPU_FLEET_OLD_COLLECTOR (none, found, replaced), and in words what to do, GPU_FLEET_OLD_COLLECTOR_NOTICE."""

    def parts(self) -> tuple[Part, ...]:
        return (
            Part(
                name="old-collector",
                probe="old_collector",
                settings={"GPU_FLEET_REPLACE_OLD_COLLECTOR": "no"},
            ),
            Part(
                name="old-collector-replaced",
                when={"GPU_FLEET_OLD_COLLECTOR": ("replaced",)},
                files=tuple(File.from_rootfs(path) for path in FILES),
            ),
        )
