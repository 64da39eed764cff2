"""What a check of the whole stack file looks at, and how it reports."""

from __future__ import annotations

import os
from collections.abc import Set
from dataclasses import dataclass
from typing import Final

from gpu_fleet.stackfile.hostlist import HostList
from gpu_fleet.stackfile.hostspec import HostSpec
from gpu_fleet.stackfile.naming import PROJECT
from gpu_fleet.stackfile.problems import Problem
from gpu_fleet.stackfile.sections import StackFile

# Set where two commits are compared and nothing is deployed (components/registered.py): a runner of a CI has not the private keys
# and kubeconfigs of whoever deploys, and perhaps no network for charts.
COMPARED_ONLY: Final = "GPU_FLEET_COMPARED_ONLY"

_NAMED = 5  # a message names so many hosts and counts the others


@dataclass(frozen=True)
class Stack:
    """What the checks look at. A section in `broken` has errors of its own: it is neither missing nor contradicted."""

    file: StackFile
    listing: HostList
    broken: Set[str]
    secrets_set: Set[str]
    has_hosts: bool  # whether the stack means to have some, even if none could be read

    def is_absent(self, section: str) -> bool:
        return section not in self.broken and getattr(self.file, section) is None

    @property
    def is_deployed_from_here(self) -> bool:
        """Whether the files that belong to a machine, not to a repository, must be here."""
        return not os.environ.get(COMPARED_ONLY)

    @property
    def ssh_hosts(self) -> list[HostSpec]:
        return [host for host in self.listing.hosts.values() if host.connection == "ssh" and not host.lost]


def problem(path: str, what: str, expected: str = "", fix: str = "") -> Problem:
    """An error at a path of the stack file, `gpu-fleet:` left out."""
    return Problem(f"{PROJECT}:{path}", what, expected, fix)


def some(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"
