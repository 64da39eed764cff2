"""Further exporters on the hosts: the hosts exist, and no series looks like one of ours."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_fleet.stackfile.problems import Problem
from gpu_fleet.stackfile.validation.named_hosts import check_names
from gpu_fleet.stackfile.validation.subject import Stack, problem

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
            whole = "remove `hosts`: then all GPU hosts have the target"
            yield from check_names(f"{path}.hosts", target.hosts, stack, instead_of_pulled=whole)
