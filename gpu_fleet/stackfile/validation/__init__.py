"""What the sections of a stack file must be together, with its secrets, and with the files that it names."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_fleet.stackfile.problems import Problem
from gpu_fleet.stackfile.validation import (
    alerts,
    custom,
    hosts,
    incomplete,
    jobs,
    kubernetes,
    login,
    monitoring,
    pull,
    readiness,
    rollout,
    scrape,
    scrape_targets,
    servers,
)
from gpu_fleet.stackfile.validation.subject import Stack


def check_all(stack: Stack) -> Iterator[Problem]:
    for module in (
        monitoring,
        hosts,
        rollout,
        login,
        servers,
        pull,
        scrape,
        scrape_targets,
        jobs,
        kubernetes,
        readiness,
        alerts,
        custom,
        incomplete,
    ):
        yield from module.check(stack)
