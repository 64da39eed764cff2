"""The section about jobs: which of them has which GPU."""

from __future__ import annotations

from typing import Literal

from gpu_fleet.stackfile.values import Section


class Jobs(Section):
    """Each GPU's job, user and account, as one series beside the GPU's other metrics. See docs/jobs.md."""

    scheduler: Literal["slurm"]
    """Whose prolog and epilog call us on each host."""
