"""Probes look at a host before anything is placed there, and print facts (gpu_fleet/host/converge/README.md).

Each is a module with `probe(host, *arguments)`, which returns facts, or the text of an answer, or raises Refusal. They are run
from the tree of a bundle, as `python3 -I -S -B .../lib/python probe MODULE [ARGUMENT...]`.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Mapping, NamedTuple, Sequence

from .host import Host, Refusal


class Outcome(NamedTuple):
    """`code`: exit status. `printed`: NAME=value lines, or the answer. `reason`: why there is none, for stderr."""

    code: int
    printed: str
    reason: str = ""


def outcome(module: str, arguments: Sequence[str], environment: Mapping[str, str]) -> Outcome:
    try:
        found = importlib.import_module(f".{module}", __package__).probe(Host(environment), *arguments)
    except Refusal as refusal:
        return Outcome(refusal.code, "", f"{refusal}\n")
    if isinstance(found, str):
        return Outcome(0, f"{found}\n" if found else "")
    return Outcome(0, "".join(f"{name}={_of_one_line(value)}\n" for name, value in found.items()))


def main(arguments: Sequence[str]) -> int:
    found = outcome(arguments[0], arguments[1:], os.environ)
    sys.stdout.write(found.printed)
    sys.stderr.write(found.reason)
    return found.code


def _of_one_line(value: str) -> str:
    """Values come from tools and files, and an environment file cannot have control characters."""
    return "".join(character if character.isprintable() else " " for character in value)
