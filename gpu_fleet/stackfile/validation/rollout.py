"""The rollout against the hosts that the stack has."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_fleet.stackfile.patterns import PATTERN_EXPECTED, PatternError
from gpu_fleet.stackfile.problems import Problem, nearest
from gpu_fleet.stackfile.validation.subject import Stack, problem, some


def check(stack: Stack) -> Iterator[Problem]:
    section, hosts = stack.file.rollout, stack.listing.hosts
    if section is None:
        return
    if not stack.has_hosts:
        yield problem("rollout", "the stack has no hosts", fix="remove the section, or add hosts")
        return
    if not hosts or isinstance(section.canary, int):
        return
    try:
        unknown = [name for name in section.canaries(list(hosts)) if name not in hosts]
    except PatternError as error:
        yield problem("rollout.canary", str(error), PATTERN_EXPECTED, "correct the range")
        return
    if unknown:
        meant = nearest(unknown[0], hosts)
        fix = f"did you mean {meant}?" if meant else "write names as in hosts or in the inventory"
        what = f"{some(unknown)} {'is not a host' if len(unknown) == 1 else 'are not hosts'} of this stack"
        yield problem("rollout.canary", what, "hosts of this stack", fix)
