"""The Python of a host, for our programs there (on_host/): the distribution's own, 3.8 or newer. And what they share."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_fleet.host.part import File, Part

PROBE = "/opt/gpu-fleet/libexec/find-python"
_RUN_PROBE = "/opt/gpu-fleet/libexec/probe"
_MODULES = (
    *("__main__", "on_host/__init__", "on_host/files", "on_host/samples", "on_host/tools"),
    *("on_host/probe/__init__", "on_host/probe/host"),
)


@dataclass(frozen=True, kw_only=True)
class Python:
    """Facts of GPU hosts: GPU_FLEET_PYTHON, its path, and GPU_FLEET_HAS_PYTHON, for the sake of hosts of earlier releases.
    A host without one is refused: the probes after this one are Python programs."""

    def part(self) -> Part:
        scripts = (File.from_rootfs(path) for path in (PROBE, _RUN_PROBE))
        return Part(name="python", probe=PROBE, fatal=True, files=(*scripts, *(File.python(module) for module in _MODULES)))


def probe_files(path: str, *modules: str) -> tuple[File, ...]:
    """The file of a probe, and the modules of on_host/probe/ that it needs beside those of the part above."""
    return (File.from_rootfs(path), *(File.python(f"on_host/probe/{module}") for module in modules))
