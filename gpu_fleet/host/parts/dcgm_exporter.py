"""dcgm-exporter on one host: the GPU exporter of bare metal and VMs. In a Docker or Podman container, or from DCGM's packages.

Not done here: choosing one of the three (exporter_choice.py), and installing what the container needs (container_runtime.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_fleet.host.part import ROOTFS, Directory, Download, File, HttpCheck, Part, Source, Unit, User
from gpu_fleet.host.parts.adoption import GPU_EXPORTER_ADOPTED
from gpu_fleet.host.parts.exporter_choice import DCGM_EXPORTER
from gpu_fleet.toolchain.versions import image

START = "/opt/gpu-fleet/libexec/start-dcgm-exporter"
START_HOST = "/opt/gpu-fleet/libexec/start-dcgm-exporter-host"
WATCH = "/opt/gpu-fleet/libexec/watch-driver"
COUNTERS = "/etc/dcgm-exporter/counters.csv"
ARCHIVE = "/opt/gpu-fleet/share/dcgm-exporter.tar"
# The same as in NVIDIA's own image: profiling on Ampere and older needs the proprietary one.
_PACKAGES = ("datacenter-gpu-manager-4-core", "datacenter-gpu-manager-4-proprietary", "datacenter-gpu-manager-exporter")
# A GPU's series, with any list of counters: an open port alone does not mean that GPUs are readable.
_OF_A_GPU = '{gpu="'


@dataclass(frozen=True, kw_only=True)
class DcgmExporter:
    """`image`: as given to `docker pull`, with its digest. `archives`: the image as written by `docker save`, by architecture,
    for hosts that reach no registry; with archives no registry is used. `counters`: lines "field, type, help"; with a
    DCGM_FI_PROF_* field the container runs with SYS_ADMIN."""

    image: str = field(default_factory=lambda: image("dcgm-exporter").reference)
    archives: Mapping[str, Source] = field(default_factory=dict)
    counters: str = field(default_factory=(ROOTFS / "etc/dcgm-exporter/standard.csv").read_text)

    def parts(self) -> tuple[Part, ...]:
        archive = (Download(path=ARCHIVE, sources=self.archives, mode=0o644),) if self.archives else ()
        module = File.python("on_host/dcgm_container")
        in_container = (START, module.path, *(download.path for download in archive))
        return (
            Part(
                name="dcgm-counters",
                when={"GPU_FLEET_EXPORTER_MODE": (DCGM_EXPORTER,), GPU_EXPORTER_ADOPTED: ("no",)},
                directories=(Directory(path="/etc/dcgm-exporter"),),
                files=(File(path=COUNTERS, content=self.counters.encode()), File.from_rootfs(WATCH)),
            ),
            Part(
                name="dcgm-container",
                when={"GPU_FLEET_DCGM_RUN": ("docker", "podman")},
                files=(File.from_rootfs(START), module),
                downloads=archive,
            ),
            _part("dcgm-exporter", "docker", in_container, users=(User(name="gpu-fleet-dcgm-exporter", groups=("docker",)),)),
            _part("dcgm-exporter-podman", "podman", in_container),
            _part(
                "dcgm-exporter-host",
                "packages",
                (START_HOST,),
                files=(File.from_rootfs(START_HOST),),
                packages={"debian": _PACKAGES, "rhel": _PACKAGES},
                users=(User(name="gpu-fleet-dcgm-exporter-host"),),
            ),
        )

    def settings(self) -> Mapping[str, str]:
        """Settings that choose-exporter reads too."""
        return {"GPU_FLEET_DCGM_IMAGE": self.image, "GPU_FLEET_DCGM_ARCHIVE": ARCHIVE if self.archives else ""}


def _part(
    name: str,
    run: str,
    started_by: tuple[str, ...],
    *,
    files: tuple[File, ...] = (),
    packages: Mapping[str, tuple[str, ...]] | None = None,
    users: tuple[User, ...] = (),
) -> Part:
    return Part(
        name=name,
        when={"GPU_FLEET_DCGM_RUN": (run,)},
        units=(Unit(name=f"gpu-fleet-{name}", restart_on=(*started_by, WATCH, COUNTERS, "settings")),),
        # Counted from when the image (about half a gigabyte) is present; if it cannot be pulled, the wait ends at once.
        checks=(HttpCheck(url="http://${GPU_FLEET_GPU_EXPORTER_LISTEN}/metrics", contains=_OF_A_GPU, within_s=300),),
        files=files,
        packages=packages or {},
        users=users,
    )
