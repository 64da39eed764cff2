"""Who asks Slurm for its queue."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_fleet.stackfile.jobs import asking
from gpu_fleet.stackfile.patterns import PatternError
from gpu_fleet.stackfile.problems import Problem
from gpu_fleet.stackfile.validation.named_hosts import check_names
from gpu_fleet.stackfile.validation.subject import Stack, problem

_MOST = 3


def check(stack: Stack) -> Iterator[Problem]:
    section = stack.file.jobs
    if section is None or "jobs" in stack.broken:
        return
    path = "jobs.queueHosts"
    yield from check_names(path, section.queue_hosts, stack, instead_of_pulled="name a host that `up` deploys")
    try:
        count = len(asking(section))
    except PatternError:  # reported above
        return
    if count > _MOST:
        what = f"{count} hosts ask the controller for the whole queue, each minute"
        yield problem(path, what, f"at most {_MOST}", "one is enough; a second one asks while the first is down")
