"""The kinds of hosts the lab can make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lab.hosts import image


@dataclass(frozen=True, kw_only=True)
class Variant:
    """`scenario`: the simulated GPUs (lab/gpu/scenarios), None for a host without a driver. `seems`: what the host takes
    itself for; a lab host is always a container, and programs on it look."""

    name: str
    text: str
    layer: image.Layer = image.MACHINE
    scenario: str | None = "h100x8"
    seems: Literal["metal", "container"] = "metal"

    @property
    def has_systemd(self) -> bool:
        return any("systemd" in layer.packages for layer in self.layer.stack())


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant(name="metal", text="Debian 12 on bare metal with 8 H100, no container runtime"),
        Variant(name="docker", text="the same with Docker running", layer=image.DOCKER),
        Variant(name="podman", text="the same with Podman", layer=image.PODMAN),
        Variant(
            name="rhel",
            text="Debian 12 that calls itself Rocky Linux 9.6, with real rpm and dnf on bare metal with 8 H100",
            layer=image.RHEL,
        ),
        Variant(
            name="container",
            text="inside a container: 2 H200, no systemd, supervisor is there",
            layer=image.CONTAINER,
            scenario="h200x2",
            seems="container",
        ),
        Variant(name="slurm", text="Debian 12 on bare metal with 8 H100 and Slurm 22.05", layer=image.SLURM),
        Variant(name="newer-slurm", text="Debian 13 on bare metal with 8 H100 and Slurm 24.11", layer=image.NEWER_SLURM),
        Variant(name="slurm-accounting", text="the same with slurmdbd and MariaDB", layer=image.SLURM_ACCOUNTING),
        Variant(name="newest-slurm", text="Debian unstable on bare metal with 8 H100 and Slurm 26.05", layer=image.NEWEST_SLURM),
        Variant(name="amd", text="Debian 13 on bare metal with 4 MI300X", layer=image.NEWER_MACHINE, scenario="mi300x4"),
        *(
            Variant(name=name, text=f"{name.replace('-', ' ').title()} on bare metal with 8 H100", layer=layer)
            for name, layer in image.OTHERS.items()
        ),
        Variant(name="broken", text="Debian 12 on bare metal whose driver is missing", scenario=None),
    )
}
