"""Which GPU exporter a host gets: chosen on the host, because only there it is known whether it is a container and has Docker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from gpu_fleet.host.part import File, Part
from gpu_fleet.host.parts.adoption import GPU_EXPORTER_ADOPTED
from gpu_fleet.host.parts.launch import HAS_GPUS

SCRAPE = "/etc/gpu-fleet/alloy/collect_gpu_exporter.alloy"
# The values of GPU_FLEET_EXPORTER_MODE and of the label exporter_mode.
DCGM_EXPORTER = "dcgm-exporter"
NVIDIA_GPU_EXPORTER = "nvidia_gpu_exporter"
TEXTFILE = "textfile"

DcgmSource = Literal["image", "packages"]
DcgmRuntime = Literal["auto", "docker", "podman"]


@dataclass(frozen=True, kw_only=True)
class ExporterChoice:
    """Facts: GPU_FLEET_EXPORTER_MODE and, for people, GPU_FLEET_EXPORTER_REASON. For dcgm-exporter: GPU_FLEET_DCGM_RUN (docker,
    podman, packages, none), and what is installed for it: GPU_FLEET_INSTALL_RUNTIME (docker, podman, none),
    GPU_FLEET_INSTALL_TOOLKIT (yes, no), GPU_FLEET_INSTALL_REPOSITORY (debian, rhel, none: the family whose package manager gets
    NVIDIA's repository), GPU_FLEET_DOCKER_SETTINGS (yes, no: whether Docker gets settings of ours), GPU_FLEET_PREPARE_CONTAINERS
    (yes, no).

    `dcgm_source`, `dcgm_runtime`: how the stack runs dcgm-exporter. `needs`: settings of the parts that run it.
    """

    dcgm_source: DcgmSource = "image"
    dcgm_runtime: DcgmRuntime = "auto"
    needs: Mapping[str, str] = field(default_factory=dict)
    listen: str = "127.0.0.1:9835"  # of either exporter, for Alloy on the same host; 9835 is nvidia_gpu_exporter's own port

    def parts(self) -> tuple[Part, ...]:
        """The choice, and Alloy's scrape if the chosen exporter has a port."""
        return (
            Part(
                name="exporter-choice",
                when={GPU_EXPORTER_ADOPTED: ("no",), **HAS_GPUS},
                probe="exporter",
                fatal=True,
                settings={
                    "GPU_FLEET_EXPORTER": "auto",
                    "GPU_FLEET_GPU_EXPORTER_LISTEN": self.listen,
                    "GPU_FLEET_DCGM_SOURCE": self.dcgm_source,
                    "GPU_FLEET_DCGM_RUNTIME": self.dcgm_runtime,
                    **self.needs,
                },
            ),
            Part(
                name="gpu-exporter-scrape",
                when={"GPU_FLEET_EXPORTER_MODE": (DCGM_EXPORTER, NVIDIA_GPU_EXPORTER)},
                files=(File.from_rootfs(SCRAPE),),
            ),
        )
