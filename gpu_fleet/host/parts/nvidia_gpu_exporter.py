"""nvidia_gpu_exporter on one host: the GPU exporter of containers and of hosts without Docker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_fleet.host.part import Download, File, HttpCheck, Part, Source, Unit, User
from gpu_fleet.host.parts.adoption import GPU_EXPORTER_ADOPTED
from gpu_fleet.host.parts.exporter_choice import NVIDIA_GPU_EXPORTER

PROGRAM = "/opt/gpu-fleet/bin/nvidia_gpu_exporter"
START = "/opt/gpu-fleet/libexec/start-nvidia-gpu-exporter"
_MODULES = tuple(map(File.python, ("on_host/nvidia_gpu_exporter", "on_host/nvidia_query")))
_ASK = "/opt/gpu-fleet/libexec/ask-nvidia-smi"
STARTED_BY = (PROGRAM, START, *(module.path for module in _MODULES))


@dataclass(frozen=True, kw_only=True)
class NvidiaGpuExporter:
    sources: Mapping[str, Source]  # by architecture

    def part(self) -> Part:
        return Part(
            name="nvidia-gpu-exporter",
            when={"GPU_FLEET_EXPORTER_MODE": (NVIDIA_GPU_EXPORTER,), GPU_EXPORTER_ADOPTED: ("no",)},
            # These groups own /dev/nvidia* where an administrator restricted access.
            users=(User(name="gpu-fleet-nvidia-gpu-exporter", groups=("video", "render")),),
            files=(File.from_rootfs(START), File.from_rootfs(_ASK), *_MODULES),
            downloads=(Download(path=PROGRAM, sources=self.sources),),
            units=(Unit(name="gpu-fleet-nvidia-gpu-exporter", restart_on=(*STARTED_BY, "settings")),),
            # Present only while all fields are asked for and nvidia-smi answers: an open port alone means nothing.
            checks=(HttpCheck(url="http://${GPU_FLEET_GPU_EXPORTER_LISTEN}/metrics", contains="nvidia_smi_gpu_info"),),
        )
