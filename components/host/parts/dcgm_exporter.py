"""dcgm-exporter in a container on one host: the GPU exporter of bare metal and VMs with Docker.

Not done here: Docker and the NVIDIA container toolkit, which are there where choose-exporter takes this exporter.
"""

from __future__ import annotations

from dataclasses import dataclass

from components.dcgm.counters import counters
from components.host.part import File, HttpCheck, Part, Unit, User
from components.host.parts.exporter_choice import DCGM_EXPORTER

START = "/opt/gpu-fleet/libexec/start-dcgm-exporter"
COUNTERS = "/etc/dcgm-exporter/counters.csv"
STANDARD = counters("standard").text


@dataclass(frozen=True, kw_only=True)
class DcgmExporter:
    """`counters`: lines "field, type, help". One that names a DCGM_FI_PROF_* field makes the container run with SYS_ADMIN."""

    image: str  # as `docker pull` takes it, with its digest where that is pinned
    counters: str

    def part(self) -> Part:
        return Part(
            name="dcgm-exporter",
            when={"GPU_FLEET_EXPORTER_MODE": (DCGM_EXPORTER,)},
            users=(User(name="gpu-fleet-dcgm-exporter", groups=("docker",)),),
            files=(File.from_rootfs(START), File(path=COUNTERS, content=self.counters.encode())),
            settings={"GPU_FLEET_DCGM_IMAGE": self.image},
            units=(Unit(name="gpu-fleet-dcgm-exporter", restart_on=(START, COUNTERS, "settings")),),
            # The first start pulls the image, about half a gigabyte.
            checks=(
                HttpCheck(url="http://${GPU_FLEET_GPU_EXPORTER_LISTEN}/metrics", contains="DCGM_FI_DEV_GPU_TEMP", within_s=300),
            ),
        )
