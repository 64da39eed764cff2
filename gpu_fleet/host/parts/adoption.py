"""Existing exporters that are adopted: where they respond, ours are not placed and Alloy scrapes them instead."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_fleet.host.part import HttpCheck, Part

# Facts for `when`: whether the exporter is adopted.
NODE_EXPORTER_ADOPTED = "GPU_FLEET_NODE_EXPORTER_ADOPTED"
GPU_EXPORTER_ADOPTED = "GPU_FLEET_GPU_EXPORTER_ADOPTED"


@dataclass(frozen=True, kw_only=True)
class Adoption:
    """Facts: GPU_FLEET_NODE_EXPORTER_ADOPTED and GPU_FLEET_GPU_EXPORTER_ADOPTED (yes, no), and GPU_FLEET_NODE_EXPORTER_REASON.
    For an adopted GPU exporter also its address, and the facts that exporter_choice.py finds for our own."""

    def parts(self) -> tuple[Part, ...]:
        """The probe, before the exporter is chosen; and for adopted exporters the check that they still respond."""
        return (
            Part(name="adoption", probe="adoption", fatal=True, settings={"GPU_FLEET_ADOPT": "no"}),
            Part(
                name="node-exporter-adopted",
                when={NODE_EXPORTER_ADOPTED: ("yes",)},
                checks=(HttpCheck(url="http://${GPU_FLEET_NODE_EXPORTER_LISTEN}/metrics", contains="node_uname_info"),),
            ),
            Part(
                name="gpu-exporter-adopted",
                when={GPU_EXPORTER_ADOPTED: ("yes",)},
                checks=(HttpCheck(url="http://${GPU_FLEET_GPU_EXPORTER_LISTEN}/metrics"),),
            ),
        )
