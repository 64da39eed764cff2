"""Further exporters on the hosts: the hosts exist, and no series looks like one of ours."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_fleet.stackfile.naming import PROJECT
from gpu_fleet.stackfile.patterns import PATTERN_EXPECTED, PatternError, expand
from gpu_fleet.stackfile.problems import Problem, nearest
from gpu_fleet.stackfile.scrape_targets import ScrapeTarget
from gpu_fleet.stackfile.validation.subject import Stack, problem, some

# Set on every series of a host by discover.alloy; and `job`, which is the target's name.
_OURS = ("instance", "datacenter", "cluster", "exporter_mode", "job")
_OUR_JOBS = ("alloy", "node-exporter", "gpu-exporter", "textfile")


def check(stack: Stack) -> Iterator[Problem]:
    targets = stack.file.scrape_targets
    if targets is None or "scrapeTargets" in stack.broken:
        return
    if not stack.has_hosts:
        yield problem("scrapeTargets", "the stack has no hosts", fix="remove the section, or add hosts")
    for job, target in targets.items():
        path = f"scrapeTargets.{job}"
        if job in _OUR_JOBS or "dcgm" in job:  # alerts about our exporters select `job=~".*dcgm.*"` too
            yield problem(path, f"{job} is the job of an exporter of ours", "a name of its own", "rename it")
        for name in sorted(target.labels.keys() & {*_OURS}):
            yield problem(f"{path}.labels.{name}", "is set by us on every series", "another label", "rename or remove it")
        if stack.has_hosts:
            yield from _hosts(f"{path}.hosts", target, stack)


def _hosts(path: str, target: ScrapeTarget, stack: Stack) -> Iterator[Problem]:
    known = stack.listing.hosts
    if not known:
        return
    for index, pattern in enumerate(target.hosts):
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
            yield problem(where, what, "hosts that are deployed by `up`", "remove `hosts`: then all GPU hosts have the target")
