"""Probes look at a host before anything is placed there, and give facts (gpu_fleet/host/converge/README.md).

Each is a module with `probe(host, *arguments)`, which returns facts, or the text of an answer, or raises Refusal.
"""

from __future__ import annotations

import importlib
from typing import Mapping, NamedTuple, Sequence

from .host import Host, Refusal


class Outcome(NamedTuple):
    """`code`: 0, or that of a Refusal. `reason`: why there is nothing else."""

    code: int
    facts: Mapping[str, str] = {}
    answer: str = ""
    reason: str = ""


def outcome(module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Outcome:
    try:
        found = importlib.import_module(f".{module}", __package__).probe(Host(environment), *arguments)
    except Refusal as refusal:
        return Outcome(refusal.code, reason=f"{refusal}\n")
    if isinstance(found, str):
        return Outcome(0, answer=found)
    return Outcome(0, {name: _of_one_line(value) for name, value in found.items()})


def _of_one_line(value: str) -> str:
    """Values come from tools and files, and an environment file cannot have control characters."""
    return "".join(character if character.isprintable() else " " for character in value)
