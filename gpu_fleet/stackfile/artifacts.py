"""Which directory of artifacts a stack may use: one of the lab, with simulated programs in it, is for stacks of the lab."""

from __future__ import annotations

from gpu_fleet.host.artifacts import INDEX, simulated_in
from gpu_fleet.stackfile.config import StackConfig
from gpu_fleet.stackfile.stand_ins import permit


def permit_artifacts(config: StackConfig, stack: str) -> str:
    """Empty where every program is a release, else the warning of a trial. Raises ArtifactsError and StandInsRefused."""
    section = config.artifacts
    if section.directory is None or not config.hosts or not (found := simulated_in(config.local_path(section.directory))):
        return ""
    what = f"{', '.join(found)} of gpu-fleet:artifacts.directory ({section.directory}/{INDEX} marks them as simulated)"
    fix = "Run `make artifacts` on a machine that can download the releases, and name that directory."
    return permit(stack, what, fix, config.hosts.values())
