"""The Python of a host, for our programs there (on_host/): the distribution's own, 3.8 or newer."""

from __future__ import annotations

from dataclasses import dataclass

from host.part import File, Part

PROBE = "/opt/gpu-fleet/libexec/find-python"
HAS_PYTHON = {"GPU_FLEET_HAS_PYTHON": ("yes",)}  # for `when`


@dataclass(frozen=True, kw_only=True)
class Python:
    """Facts: GPU_FLEET_PYTHON (its path, or empty), GPU_FLEET_HAS_PYTHON (yes, no), and what to do where there is none,
    GPU_FLEET_PYTHON_NOTICE."""

    def part(self) -> Part:
        return Part(name="python", when={"GPU_FLEET_ROLE": ("gpu",)}, probe=PROBE, files=(File.from_rootfs(PROBE),))
