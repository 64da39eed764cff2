"""Which GPU exporter a host gets: asked of the host itself, because only it knows whether it is a container and has Docker."""

from __future__ import annotations

from dataclasses import dataclass

from components.host.part import File, Part

PROBE = "/opt/gpu-fleet/libexec/choose-exporter"


@dataclass(frozen=True, kw_only=True)
class ExporterChoice:
    """Facts: GPU_FLEET_EXPORTER_MODE (dcgm-exporter, nvidia_gpu_exporter, textfile) and GPU_FLEET_EXPORTER_REASON, for people."""

    def part(self) -> Part:
        return Part(
            name="exporter-choice",
            probe=PROBE,
            fatal=True,
            files=(File.from_rootfs(PROBE),),
            settings={"GPU_FLEET_EXPORTER": "auto"},
        )
