"""The section about jobs: which of them has which GPU, and what waits."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from gpu_fleet.stackfile.patterns import expand
from gpu_fleet.stackfile.values import Section, Texts


class Jobs(Section):
    """Each GPU's job, user and account, as one series beside the GPU's other metrics. See docs/jobs.md."""

    scheduler: Literal["slurm"]
    """Whose prolog and epilog call us on each host."""
    queue_hosts: Annotated[tuple[str, ...], Texts] = Field(default=(), examples=[["gpu-node-001"]])
    """Hosts that ask Slurm for its queue, nodes and GPUs, for the dashboard and the alerts: any that has Slurm's commands, three
    at most. Default: none, and they are not known."""


def asking(section: Jobs) -> set[str]:
    """Names of hosts. Raises PatternError."""
    return {name for pattern in section.queue_hosts for name in expand(pattern)}
