"""The section about whether work may start on a host, and what a scheduler does when it may not."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gpu_fleet.stackfile.values import Section


class Readiness(Section):
    """`gpu-fleet-ready` on every host says pass, warn, fail or unknown, with reasons. See docs/readiness.md."""

    slurm: Literal["dry-run", "drain"] = "dry-run"
    """What Slurm's HealthCheckProgram does on a host that is not ready, where slurm.conf names it. `drain`: drain the node, and
    resume it when it is ready again."""
    most_drained: Annotated[float, Field(gt=0, le=100)] = 5
    """Percent of the nodes of the Slurm cluster that are drained by gpu-fleet at a time, and at least one node."""
