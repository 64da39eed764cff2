"""How programs are started on a host: scripts that several other parts use. Places no program itself."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_fleet.host.part import File, Part

RUN = "/opt/gpu-fleet/libexec/run"
FETCH_METRICS = "/opt/gpu-fleet/libexec/fetch-metrics"
PYTHON_PROGRAM = "/opt/gpu-fleet/libexec/python-program"

# What a host is for, a setting: gpu, monitoring or both.
ROLE = "GPU_FLEET_ROLE"
GPU_ROLES = ("gpu", "both")
SERVER_ROLES = ("monitoring", "both")
# For `when`.
HAS_GPUS = {ROLE: GPU_ROLES}
IS_SERVER = {ROLE: SERVER_ROLES}


@dataclass(frozen=True, kw_only=True)
class Launch:
    def part(self) -> Part:
        return Part(
            name="launch",
            files=tuple(File.from_rootfs(path) for path in (RUN, FETCH_METRICS, PYTHON_PROGRAM)),
            # Empty: PATH and the usual install directories suffice on most hosts.
            settings={"GPU_FLEET_TOOL_PATH": "", ROLE: "gpu"},
        )
