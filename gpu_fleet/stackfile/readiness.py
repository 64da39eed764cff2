"""The section about whether work may start on a host, and what a scheduler does when it may not."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gpu_fleet.stackfile.values import ImageDigest, Section


class Readiness(Section):
    """`gpu-fleet-ready` on every host says pass, warn, fail or unknown, with reasons. See docs/readiness.md."""

    slurm: Literal["dry-run", "drain"] = "dry-run"
    """What Slurm's HealthCheckProgram does on a host that is not ready, where slurm.conf names it. `drain`: drain the node, and
    resume it when it is ready again."""
    most_drained: Annotated[float, Field(gt=0, le=100)] = 5
    """Percent of the nodes of the Slurm cluster, or of the GPU nodes of the Kubernetes cluster, that are drained or tainted by
    gpu-fleet at a time, and at least one node."""
    kubernetes: Literal["dry-run", "condition", "taint"] = "dry-run"
    """What happens to the nodes of the Kubernetes cluster. `dry-run`: metrics alone; `condition`: each GPU node has the condition
    GpuFleetReady; `taint`: one that fails also gets a taint that keeps new pods away, until it is ready again."""
    image: ImageDigest | None = Field(default=None, examples=["registry.example.com/library/python@sha256:" + "0" * 64])
    """An image with Python 3.9 or newer, which runs the program in the Kubernetes cluster. Default: Docker Hub's official one, as
    pinned in gpu_fleet/toolchain/versions.yaml."""
