"""node_exporter on one host: what it places there, and how it is checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_fleet.host.part import Download, File, HttpCheck, Part, Source, Unit, User
from gpu_fleet.host.parts.adoption import NODE_EXPORTER_ADOPTED

PROGRAM = "/opt/gpu-fleet/bin/node_exporter"
START = "/opt/gpu-fleet/libexec/start-node-exporter"


@dataclass(frozen=True, kw_only=True)
class NodeExporter:
    sources: Mapping[str, Source]  # by architecture
    listen: str = "127.0.0.1:9100"  # Alloy on the same host is the only reader

    def part(self) -> Part:
        return Part(
            name="node-exporter",
            when={NODE_EXPORTER_ADOPTED: ("no",)},
            users=(User(name="gpu-fleet-node-exporter"),),
            files=(File.from_rootfs(START),),
            downloads=(Download(path=PROGRAM, sources=self.sources),),
            settings={"GPU_FLEET_NODE_EXPORTER_LISTEN": self.listen},
            units=(Unit(name="gpu-fleet-node-exporter", restart_on=(PROGRAM, START, "settings")),),
            checks=(HttpCheck(url="http://${GPU_FLEET_NODE_EXPORTER_LISTEN}/metrics", contains="node_uname_info"),),
        )
