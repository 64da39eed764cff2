"""What a stack needs whose hosts provision themselves."""

from __future__ import annotations

from collections.abc import Iterator

from stackfile.naming import PROJECT
from stackfile.problems import Problem
from stackfile.validation.subject import Stack, problem

_NEEDED = {
    "datacenter": "name the datacenter of these hosts",
    "cluster": "name their cluster",
    "metrics": "say where they push: `metrics: {url: …}`",
}


def check(stack: Stack) -> Iterator[Problem]:
    section = stack.file.pull
    if "pull" in stack.broken or section is None:
        return
    if section.url.startswith("http://"):
        stack.listing.warnings.append(f"{PROJECT}:pull.url: the installer and the key in it travel in clear; use https")
    if stack.has_hosts:
        return  # which need the same, and are told so
    for name, fix in _NEEDED.items():
        if stack.is_absent(name):
            yield problem(name, f"is missing: {PROJECT}:pull is set", fix=fix)
