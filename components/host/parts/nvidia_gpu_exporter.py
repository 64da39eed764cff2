"""nvidia_gpu_exporter on one host: the GPU exporter of containers and of hosts without Docker.

It also brings Alloy's scrape of it, so that a host with another exporter does not ask an empty port.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from components.host.part import Download, File, HttpCheck, Part, Source, Unit, User

MODE = "nvidia_gpu_exporter"
PROGRAM = "/opt/gpu-fleet/bin/nvidia_gpu_exporter"
START = "/opt/gpu-fleet/libexec/start-gpu-exporter"
SCRAPE = "/etc/alloy/collect_nvidia_gpu_exporter.alloy"


@dataclass(frozen=True, kw_only=True)
class NvidiaGpuExporter:
    sources: Mapping[str, Source]  # by architecture
    listen: str = "127.0.0.1:9835"  # the exporter's own default port

    def part(self) -> Part:
        return Part(
            name="nvidia-gpu-exporter",
            when={"GPU_FLEET_EXPORTER_MODE": (MODE,)},
            # The groups own /dev/nvidia* where an administrator took them from "everyone".
            users=(User(name="gpu-fleet-gpu-exporter", groups=("video", "render")),),
            files=(File.from_rootfs(START), File.from_rootfs(SCRAPE)),
            downloads=(Download(path=PROGRAM, sources=self.sources),),
            settings={"GPU_FLEET_GPU_EXPORTER_LISTEN": self.listen},
            units=(Unit(name="gpu-fleet-gpu-exporter", restart_on=(PROGRAM, START, "settings")),),
            # Present with the first successful nvidia-smi run only: a listening port alone says nothing about GPUs.
            checks=(
                HttpCheck(url="http://${GPU_FLEET_GPU_EXPORTER_LISTEN}/metrics", contains="nvidia_smi_gpu_info", within_s=20),
            ),
        )
