"""How programs are started on a host: the two scripts that the units of all other parts use. Places no program itself."""

from __future__ import annotations

from dataclasses import dataclass

from components.host.part import File, Part

RUN = "/opt/gpu-fleet/libexec/run"
FIND_TOOL = "/opt/gpu-fleet/libexec/find-tool"


@dataclass(frozen=True, kw_only=True)
class Launch:
    def part(self) -> Part:
        return Part(
            name="launch",
            files=(File.from_rootfs(RUN), File.from_rootfs(FIND_TOOL)),
            # Empty: PATH and the usual places are enough on most hosts.
            settings={"GPU_FLEET_TOOL_PATH": ""},
        )
