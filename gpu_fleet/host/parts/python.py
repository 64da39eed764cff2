"""The Python of a host, for our programs there (on_host/): the distribution's own, 3.8 or newer. And what they share."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_fleet.host.part import File, Part

_MODULES = (
    *("__main__", "on_host/__init__", "on_host/files", "on_host/loop", "on_host/nvidia_smi", "on_host/page", "on_host/samples"),
    *("on_host/output", "on_host/tools", "on_host/trust"),
)


@dataclass(frozen=True, kw_only=True)
class Python:
    """Facts of GPU hosts: GPU_FLEET_PYTHON, its path, and GPU_FLEET_HAS_PYTHON, for the sake of hosts of earlier releases."""

    def part(self) -> Part:
        return Part(name="python", probe="python", fatal=True, files=tuple(File.python(module) for module in _MODULES))
