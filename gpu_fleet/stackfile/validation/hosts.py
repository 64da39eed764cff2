"""Hosts against each other and against what every stack with hosts needs."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from gpu_fleet.stackfile.naming import PROJECT
from gpu_fleet.stackfile.problems import Problem
from gpu_fleet.stackfile.validation.subject import Stack, problem, some
from gpu_fleet.stackfile.values import Section


def check(stack: Stack) -> Iterator[Problem]:
    if stack.has_hosts:
        yield from _needed(stack)
    yield from _same_machine(stack)
    yield from _ports_of_this_machine(stack)


def _needed(stack: Stack) -> Iterator[Problem]:
    for key, example in {"datacenter": "us-west", "cluster": "training"}.items():
        if stack.is_absent(key):
            yield problem(key, "is missing, and the stack has hosts", fix=f"`pulumi config set {PROJECT}:{key} {example}`")
    if stack.is_absent("metrics"):
        fix = f"add `{PROJECT}:metrics: {{url: https://mimir.example.com/api/v1/push}}`"
        yield problem("metrics", "is missing, and the stack has hosts: their metrics would go nowhere", fix=fix)
    without = [host.name for host in stack.ssh_hosts if not host.user]
    if without and "ssh" not in stack.broken:
        fix = "add it to gpu-fleet:ssh, or `user` to the host"
        yield problem("ssh.user", f"is missing: no login is known for {some(without)}", "a login name of the hosts", fix)


def _same_machine(stack: Stack) -> Iterator[Problem]:
    """Two names for one machine would undo each other's work in every run."""
    by_machine: dict[tuple[str, str], list[str]] = {}
    for name, host in stack.listing.hosts.items():
        if host.connection == "local":
            by_machine.setdefault(("this machine", f"prefix {host.prefix or 'none'}"), []).append(name)
        elif host.connection == "ssh" and not host.lost:
            through = f" through {host.bastion.host}" if host.bastion else ""
            by_machine.setdefault((f"address {_as_dns_has_it(host.address or name)}", f"port {host.port}{through}"), []).append(
                name
            )
    for machine, names in by_machine.items():
        if len(names) > 1:
            is_local = machine[0] == "this machine"
            where = stack.listing.places[names[1]](("prefix" if is_local else "address",))
            fix = "give each a prefix of its own" if is_local else "correct the address, or remove one"
            yield Problem(where, f"{some(names)} are one machine: {', '.join(machine)}", "each host once", fix)


def _as_dns_has_it(address: str) -> str:
    """One form of each: DNS ignores case and the dot at the end, and an IPv6 address can be written in many ways."""
    try:
        return ipaddress.ip_address(address).compressed
    except ValueError:
        return address.lower().removesuffix(".")


def _ports_of_this_machine(stack: Stack) -> Iterator[Problem]:
    """Hosts on this machine, and the embedded backend, share its loopback ports."""
    taken: dict[int, str] = {}
    places = [(f"{PROJECT}:backend.{path}", port) for path, port in ports_of(stack.file.backend)]
    for name, host in stack.listing.hosts.items():
        if host.connection == "local":
            places += [(stack.listing.places[name](("ports", path)), port) for path, port in ports_of(host.ports)]
    for where, port in places:
        if port in taken:
            what = f"{port} is {taken[port]} too, on the same machine"
            yield Problem(where, what, "a port of its own for each", "change one of them")
        taken.setdefault(port, where)


def ports_of(section: Section | None, path: str = "") -> Iterator[tuple[str, int]]:
    """Key below the section, and port."""
    for name, field in type(section).model_fields.items() if section else ():
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from ports_of(value, f"{path}{field.alias}.")
        elif isinstance(value, int):
            yield f"{path}{field.alias}", value
