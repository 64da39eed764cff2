"""Further exporters on a host, which Alloy scrapes beside ours. Which ones is a setting of the host."""

from __future__ import annotations

from gpu_fleet.host.part import File, Part

CONFIG = "/etc/gpu-fleet/alloy/collect_targets.alloy"


def scrape_targets() -> Part:
    return Part(
        name="scrape-targets",
        files=(File.from_rootfs(CONFIG),),
        settings={"GPU_FLEET_SCRAPE_TARGETS": "[]", "GPU_FLEET_SCRAPE_KEEP": ""},
    )
