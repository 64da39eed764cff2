"""Opening the hosts for scraping: never without a login, nor on ports that are in use."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_fleet.stackfile.naming import PROJECT
from gpu_fleet.stackfile.problems import Problem
from gpu_fleet.stackfile.scrape import Scrape
from gpu_fleet.stackfile.validation.hosts import ports_of
from gpu_fleet.stackfile.validation.subject import Stack, problem, some

SECRET = "scrapePassword"  # noqa: S105 its name


def check(stack: Stack) -> Iterator[Problem]:
    if "scrape" in stack.broken:
        return
    section = stack.file.scrape
    if section is None:
        if SECRET in stack.secrets_set:
            yield problem("scrape", f"is missing: {PROJECT}:{SECRET} is set", fix=f"`pulumi config rm {PROJECT}:{SECRET}`")
        return
    if not stack.has_hosts:
        yield problem("scrape", "the stack has no hosts", fix="remove the section, or add hosts")
    if SECRET not in stack.secrets_set:
        what = f"is missing: {PROJECT}:scrape.username is {section.username}"
        yield problem(SECRET, what, fix=f"`pulumi config set --secret {PROJECT}:{SECRET}`")
    yield from _ports(stack, section)


def _ports(stack: Stack, section: Scrape) -> Iterator[Problem]:
    names = {"nodeExporterPort": section.node_exporter_port, "gpuExporterPort": section.gpu_exporter_port}
    if section.node_exporter_port == section.gpu_exporter_port:
        what = f"{section.gpu_exporter_port} is nodeExporterPort too"
        yield problem("scrape.gpuExporterPort", what, "a port of its own", "change one of them")
    for name, port in names.items():
        for host in stack.listing.hosts.values():
            if port in host.ports.model_dump().values():
                what = f"{port} is used on loopback already, on {host.name} for one"
                yield problem(f"scrape.{name}", what, "a port of its own", "change it, or the host's ports")
                break
    here = [host.name for host in stack.listing.hosts.values() if host.connection == "local"]
    if len(here) > 1:
        what = f"{some(here)} are on this machine, and would answer on the same ports"
        yield problem("scrape", what, "one local host at most", "remove the section, or all of them but one")
    for key, port in ports_of(stack.file.backend) if here else ():
        if taken := next((name for name, ours in names.items() if ours == port), None):
            what = f"{port} is {PROJECT}:backend.{key} too, on the machine of {here[0]}"
            yield problem(f"scrape.{taken}", what, "a port of its own", "change one of them")
