"""What a stack with hosts that provision themselves needs."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_fleet.stackfile.naming import PROJECT
from gpu_fleet.stackfile.problems import Problem
from gpu_fleet.stackfile.validation.subject import Stack, problem

_NEEDED = {
    "datacenter": "name the datacenter of these hosts",
    "cluster": "name their cluster",
    "metrics": "say where they push: `metrics: {url: …}`",
}


def check(stack: Stack) -> Iterator[Problem]:
    section = stack.file.pull
    if "pull" in stack.broken or section is None:
        return
    if section.url.startswith("http://") and not section.insecure:
        what = f'"{section.url}" has no TLS: anyone on the path can replace the installer, which runs as root'
        fix = "serve it over https; or write `insecure: true` beside it where the network is trusted"
        yield problem("pull.url", what, "a URL that begins with https://", fix)
    if list(section.shares) != sorted(set(section.shares)) or section.shares[-1:] != (1.0,):
        what = f"found {', '.join(section.waves) or 'no waves'}"
        yield problem("pull.waves", what, "rising shares, the last one 100%", "write for example [1%, 10%, 100%]")
    pulling = sum(host.connection == "pull" for host in stack.listing.hosts.values())
    if section.bandwidth and not section.hosts and not pulling:
        what = "is set, and it is not known how many hosts share it"
        yield problem("pull.bandwidth", what, fix="add `hosts: 1000`, or list the hosts with `connection: pull`")
    if stack.has_hosts:
        return  # they need the same, and validation/hosts.py checks it
    for name, fix in _NEEDED.items():
        if stack.is_absent(name):
            yield problem(name, f"is missing: {PROJECT}:pull is set", fix=fix)
