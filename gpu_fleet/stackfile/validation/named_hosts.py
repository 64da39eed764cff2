"""Hosts that a section names: they exist, and `up` deploys them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu_fleet.stackfile.naming import PROJECT
from gpu_fleet.stackfile.patterns import PATTERN_EXPECTED, PatternError, expand
from gpu_fleet.stackfile.problems import Problem, nearest
from gpu_fleet.stackfile.validation.subject import Stack, problem, some


def check_names(path: str, patterns: Sequence[str], stack: Stack, *, instead_of_pulled: str) -> Iterator[Problem]:
    """`instead_of_pulled`: how to fix that a host is named which provisions itself."""
    known = stack.listing.hosts
    if not known:
        return
    for index, pattern in enumerate(patterns):
        where = f"{path}[{index}]"
        try:
            names = expand(pattern)
        except PatternError as error:
            yield problem(where, f'"{pattern}": {error}', PATTERN_EXPECTED, "correct the range")
            continue
        unknown = [name for name in names if name not in known]
        if unknown:
            meant = nearest(unknown[0], known)
            what = f"{some(unknown)} {'is not a host' if len(unknown) == 1 else 'are not hosts'} of this stack"
            fix = f"did you mean {meant}?" if meant else f"add it to {PROJECT}:hosts, or remove it"
            yield problem(where, what, "a host, or a pattern of hosts", fix)
        pulled = [name for name in names if name in known and known[name].connection == "pull"]
        if pulled:
            what = f"{some(pulled)} provisions itself (`connection: pull`), and gets what all hosts get"
            yield problem(where, what, "hosts that are deployed by `up`", instead_of_pulled)
