"""Which GPU exporter a host gets: asked of the host itself, because only it knows whether it is a container and has Docker."""

from __future__ import annotations

from dataclasses import dataclass

from components.host.part import File, Part

PROBE = "/opt/gpu-fleet/libexec/choose-exporter"
SCRAPE = "/etc/alloy/collect_gpu_exporter.alloy"
# The values of GPU_FLEET_EXPORTER_MODE and of the label exporter_mode.
DCGM_EXPORTER = "dcgm-exporter"
NVIDIA_GPU_EXPORTER = "nvidia_gpu_exporter"
TEXTFILE = "textfile"


@dataclass(frozen=True, kw_only=True)
class ExporterChoice:
    """Facts: GPU_FLEET_EXPORTER_MODE and GPU_FLEET_EXPORTER_REASON, for people."""

    listen: str = "127.0.0.1:9835"  # of either exporter, for Alloy on the same host; 9835 is nvidia_gpu_exporter's own port

    def parts(self) -> tuple[Part, ...]:
        """The choice, and Alloy's scrape where the choice is an exporter with a port."""
        return (
            Part(
                name="exporter-choice",
                probe=PROBE,
                fatal=True,
                files=(File.from_rootfs(PROBE),),
                settings={"GPU_FLEET_EXPORTER": "auto", "GPU_FLEET_GPU_EXPORTER_LISTEN": self.listen},
            ),
            Part(
                name="gpu-exporter-scrape",
                when={"GPU_FLEET_EXPORTER_MODE": (DCGM_EXPORTER, NVIDIA_GPU_EXPORTER)},
                files=(File.from_rootfs(SCRAPE),),
            ),
        )
