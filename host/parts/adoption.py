"""Existing exporters that are kept: where they respond, ours are not placed and Alloy reads theirs."""

from __future__ import annotations

from dataclasses import dataclass

from host.part import File, HttpCheck, Part

PROBE = "/opt/gpu-fleet/libexec/adopt-exporters"
TEXTFILES = "/etc/gpu-fleet/alloy/collect_textfiles.alloy"
# Facts that say which of the two a host gets, for `when`.
NODE_EXPORTER_ADOPTED = "GPU_FLEET_NODE_EXPORTER_ADOPTED"
GPU_EXPORTER_ADOPTED = "GPU_FLEET_GPU_EXPORTER_ADOPTED"


@dataclass(frozen=True, kw_only=True)
class Adoption:
    """Facts: GPU_FLEET_NODE_EXPORTER_ADOPTED and GPU_FLEET_GPU_EXPORTER_ADOPTED (yes, no), and GPU_FLEET_NODE_EXPORTER_REASON. Of
    an adopted GPU exporter also what exporter_choice.py finds otherwise, and where it listens."""

    def parts(self) -> tuple[Part, ...]:
        """The probe, before any choice; and for adopted exporters the check that they still respond."""
        return (
            Part(name="adoption", probe=PROBE, fatal=True, files=(File.from_rootfs(PROBE),), settings={"GPU_FLEET_ADOPT": "no"}),
            Part(
                name="node-exporter-adopted",
                when={NODE_EXPORTER_ADOPTED: ("yes",)},
                # Theirs does not read our textfiles.
                files=(File.from_rootfs(TEXTFILES),),
                checks=(HttpCheck(url="http://${GPU_FLEET_NODE_EXPORTER_LISTEN}/metrics", contains="node_uname_info"),),
            ),
            Part(
                name="gpu-exporter-adopted",
                when={GPU_EXPORTER_ADOPTED: ("yes",)},
                checks=(HttpCheck(url="http://${GPU_FLEET_GPU_EXPORTER_LISTEN}/metrics", within_s=20),),
            ),
        )
