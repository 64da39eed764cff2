"""What a check of the whole stack file looks at, and how it reports."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from gpu_fleet.stackfile.hostlist import HostList
from gpu_fleet.stackfile.hostspec import HostSpec
from gpu_fleet.stackfile.naming import PROJECT
from gpu_fleet.stackfile.problems import Problem
from gpu_fleet.stackfile.sections import StackFile

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
    def ssh_hosts(self) -> list[HostSpec]:
        return [host for host in self.listing.hosts.values() if host.connection == "ssh" and not host.lost]


def problem(path: str, what: str, expected: str = "", fix: str = "") -> Problem:
    """An error at a path of the stack file, `gpu-fleet:` left out."""
    return Problem(f"{PROJECT}:{path}", what, expected, fix)


def some(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED} more"
