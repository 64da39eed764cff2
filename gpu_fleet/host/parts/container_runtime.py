"""What dcgm-exporter's container needs, installed where it is missing: Docker or Podman, and the NVIDIA Container Toolkit.

The runtime is the distribution's own package. The toolkit comes from NVIDIA's repository or a mirror of it, its key verified by
sha256. The probe `exporter` determines what is missing, before anything is placed, and whether others run
containers or guests, beside whom nothing is installed. Not done here: the driver, which is never installed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from gpu_fleet.host.part import Directory, Download, File, Part, Source, Unit
from gpu_fleet.toolchain.versions import ARCHITECTURES, Repository, repository

START = "/opt/gpu-fleet/libexec/start-container-toolkit"
IN_USE = "in_use"  # of gpu_fleet/on_host/probe
DOCKER_SETTINGS = "/etc/docker/daemon.json"
# Docker that we install serves host-network containers alone. So it needs no bridge, does not turn on forwarding, and leaves the
# firewall as it is: by default it sets the policy of FORWARD to DROP, which cuts off everything else that the host forwards.
# Source: docs.docker.com, "Packet filtering and firewalls"; moby issue 39439; read 2026-11-25.
_DOCKER_SETTINGS = {"bridge": "none", "iptables": False, "ip6tables": False, "ip-forward": False}
_SPECIFICATIONS = "/etc/cdi"  # CDI specifications, which Podman reads
# By family: the repository file, and where the package manager expects keys.
_REPOSITORY_FILES = {"debian": "/etc/apt/sources.list.d/gpu-fleet-nvidia.list", "rhel": "/etc/yum.repos.d/gpu-fleet-nvidia.repo"}
_KEYS = {"debian": "/etc/apt/keyrings/gpu-fleet-nvidia.asc", "rhel": "/etc/pki/rpm-gpg/gpu-fleet-nvidia.asc"}


@dataclass(frozen=True, kw_only=True)
class ContainerRuntime:
    """`toolkit`: the repository of the Container Toolkit. `may_install`: whether missing packages are installed at all."""

    toolkit: Repository = field(default_factory=lambda: repository("nvidia-container-toolkit"))
    may_install: bool = False

    def parts(self) -> tuple[Part, ...]:
        """The toolkit first: a Docker installed after it detects it without a restart."""
        return (
            *(
                Part(
                    name=f"nvidia-repository-{family}",
                    when={"GPU_FLEET_INSTALL_REPOSITORY": (family,)},
                    files=(File(path=path, content=self._repository_file(family).encode()),),
                    downloads=(Download(path=_KEYS[family], sources=self._key(), mode=0o644),),
                    directories=_directories(path, _KEYS[family]),
                )
                for family, path in _REPOSITORY_FILES.items()
            ),
            _installed("container-toolkit", {"GPU_FLEET_INSTALL_TOOLKIT": ("yes",)}, _everywhere("nvidia-container-toolkit")),
            # Before Docker, which starts when it is installed.
            Part(
                name="container-runtime-settings",
                when={"GPU_FLEET_DOCKER_SETTINGS": ("yes",)},
                directories=_directories(DOCKER_SETTINGS),
                files=(File(path=DOCKER_SETTINGS, content=(json.dumps(_DOCKER_SETTINGS, indent=2) + "\n").encode()),),
                keep=IN_USE,
            ),
            _installed("container-runtime-docker", {"GPU_FLEET_INSTALL_RUNTIME": ("docker",)}, {"debian": ("docker.io",)}),
            _installed("container-runtime-podman", {"GPU_FLEET_INSTALL_RUNTIME": ("podman",)}, _everywhere("podman")),
            Part(
                name="container-gpus",
                when={"GPU_FLEET_PREPARE_CONTAINERS": ("yes",)},
                files=(File.from_rootfs(START),),
                directories=(Directory(path=_SPECIFICATIONS),),
                units=(Unit(name="gpu-fleet-container-toolkit", restart_on=(START,)),),
            ),
        )

    def settings(self) -> Mapping[str, str]:
        """Settings that the probe `exporter` reads."""
        return {
            "GPU_FLEET_DCGM_INSTALL": "yes" if self.may_install else "no",
            "GPU_FLEET_TOOLKIT_REPOSITORY": self.toolkit.url,
        }

    def _repository_file(self, family: str) -> str:
        if family == "debian":
            return f"deb [signed-by={_KEYS[family]}] {self.toolkit.url}/stable/deb/$(ARCH) /\n"
        # The package list is signed and has the packages' checksums, so the packages themselves need no signature. If the
        # repository is unreachable, dnf continues without it.
        return (
            "[gpu-fleet-nvidia]\nname=NVIDIA Container Toolkit\n"
            f"baseurl={self.toolkit.url}/stable/rpm/$basearch\n"
            f"enabled=1\nrepo_gpgcheck=1\ngpgcheck=0\nskip_if_unavailable=1\ngpgkey=file://{_KEYS[family]}\n"
        )

    def _key(self) -> dict[str, Source]:
        key = Source(url=f"{self.toolkit.url}/gpgkey", sha256=self.toolkit.key_sha256)
        return {architecture: key for architecture in ARCHITECTURES}


def _installed(name: str, when: Mapping[str, tuple[str, ...]], packages: Mapping[str, tuple[str, ...]]) -> Part:
    """Packages that are kept on removal of the host if IN_USE reports other users of them."""
    return Part(name=name, when=when, packages=packages, keep=IN_USE)


def _directories(*paths: str) -> tuple[Directory, ...]:
    """The directories of these files, below /etc: created only on hosts of this family."""
    return tuple(
        Directory(path=str(parent))
        for parent in sorted({p for path in paths for p in PurePosixPath(path).parents})
        if parent.parts[2:]
    )


def _everywhere(package: str) -> dict[str, tuple[str, ...]]:
    return {"debian": (package,), "rhel": (package,)}
