"""The monitoring server: one host, its section, its certificate and key."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

from gpu_fleet.host.parts.monitoring import PORTS
from gpu_fleet.stackfile.hostspec import HostSpec
from gpu_fleet.stackfile.monitoring import Monitoring, monitoring_hosts, server_url
from gpu_fleet.stackfile.naming import PROJECT
from gpu_fleet.stackfile.problems import Problem, why_unreadable
from gpu_fleet.stackfile.validation.hosts import ports_of
from gpu_fleet.stackfile.validation.subject import Stack, problem, some

_MAKE = "docs/monitoring-server.md has the command that creates a self-signed one"
_KEY = "monitoringKey"


def check(stack: Stack) -> Iterator[Problem]:
    if "monitoring" in stack.broken or stack.broken & {"hosts", "inventory"}:
        return
    servers, section = monitoring_hosts(stack.listing.hosts), stack.file.monitoring
    if len(servers) > 1:
        names = [host.name for host in servers]
        where = stack.listing.places[names[1]](("role",))
        what = f"{some(names)} are monitoring servers"
        yield Problem(where, what, "one in a stack", "remove role from the others, which are GPU hosts then")
    if section is None:
        if servers:
            what = f"is missing, and {servers[0].name} has `role: {servers[0].role}`"
            yield problem(
                "monitoring", what, "the server's certificate", "add `monitoring: {certificateFile: inventory/monitoring.pem}`"
            )
        if _KEY in stack.secrets_set:
            yield problem(
                "monitoring", f"is missing: {PROJECT}:{_KEY} is set", fix=f"add it, or `pulumi config rm {PROJECT}:{_KEY}`"
            )
        return
    if not servers and not stack.listing.problems:
        fix = "give one `role: monitoring`, or `role: both` where it has GPUs, or remove the section"
        yield problem("monitoring", "no host of the stack is the monitoring server", fix=fix)
    if servers and not server_url(section, servers[0]):
        what = f"is missing, and {servers[0].name} has no address that others could use"
        yield problem("monitoring.url", what, "how hosts and browsers reach it", "add `url: https://NAME`")
    for server in servers:
        yield from _ports(stack, section, server)
    if section.url and section.url.startswith("http://"):
        yield problem("monitoring.url", "has no TLS", "a URL that begins with https://", "write https://")
    if stack.file.kubernetes:
        what = "cannot be in the stack of a monitoring server: its login for hosts, which the cluster would get, cannot query"
        fix = "give the cluster a stack of its own, whose `metrics` and `logs` have the server's URL, user and `tls.ca`"
        yield problem("kubernetes", what, fix=fix)
    if _KEY not in stack.secrets_set:
        fix = f"`pulumi config set --secret {PROJECT}:{_KEY} <monitoring.key`; {_MAKE}"
        yield problem(_KEY, f"is missing: {PROJECT}:monitoring is set", "the private key of its certificate", fix)
    yield from _files(stack, section)


def _ports(stack: Stack, section: Monitoring, server: HostSpec) -> Iterator[Problem]:
    """The server's, against those of what else runs on that host."""
    own = f"{PROJECT}:monitoring.port"
    taken = {section.port: own, **{port: f"the port of {name}" for port, name in PORTS.items()}}
    places = [(stack.listing.places[server.name](("ports", key)), port) for key, port in ports_of(server.ports)]
    places += [(f"{PROJECT}:scrape.{key}", port) for key, port in ports_of(stack.file.scrape)]
    for where, port in [*places, *([(own, section.port)] if section.port in PORTS else [])]:
        if port in taken:
            yield Problem(where, f"{port} is {taken[port]}, on {server.name}", "a port of its own", "change one of them")


def _files(stack: Stack, section: Monitoring) -> Iterator[Problem]:
    for key, name in {"certificateFile": section.certificate_file, "caFile": section.ca_file}.items():
        if name is None:
            continue
        try:
            text = stack.listing.local_path(name).read_text()
            if "PRIVATE KEY" in text:
                fix = f"take the key out of the file; it is the secret {PROJECT}:{_KEY}"
                yield problem(f"monitoring.{key}", f"{name} holds a private key", "certificates alone", fix)
                continue
            ssl.create_default_context(cadata=text)
        except ssl.SSLError:  # before OSError, which it is too
            yield problem(f"monitoring.{key}", f"{name} is not a certificate", "a PEM file", _MAKE)
        except (OSError, UnicodeDecodeError) as error:
            what = f"{name} {why_unreadable(error)}"
            yield problem(f"monitoring.{key}", what, "a PEM file, relative to Pulumi.yaml", f"correct the path; {_MAKE}")
