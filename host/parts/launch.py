"""How programs are started on a host: scripts that several other parts use. Places no program itself."""

from __future__ import annotations

from dataclasses import dataclass

from host.part import File, Part

RUN = "/opt/gpu-fleet/libexec/run"
FIND_TOOL = "/opt/gpu-fleet/libexec/find-tool"
FETCH_METRICS = "/opt/gpu-fleet/libexec/fetch-metrics"


@dataclass(frozen=True, kw_only=True)
class Launch:
    def part(self) -> Part:
        return Part(
            name="launch",
            files=tuple(File.from_rootfs(path) for path in (RUN, FIND_TOOL, FETCH_METRICS)),
            # Empty: PATH and the usual install directories suffice on most hosts.
            settings={"GPU_FLEET_TOOL_PATH": "", "GPU_FLEET_ROLE": "gpu"},
        )
