"""The section about what is collected on a broken host before it is repaired."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gpu_fleet.stackfile.values import Section


class Evidence(Section):
    """`gpu-fleet-evidence` on every host, which `gpu-fleet-maintenance start` and `make evidence` run. See docs/evidence.md."""

    keep: Annotated[int, Field(ge=1, le=100)] = 5
    """Archives that a host keeps, of at most 64 MiB each."""
