"""The monitoring server: one host, its section, its certificate and key."""

from __future__ import annotations

import ssl
from collections.abc import Iterator

from stackfile.monitoring import ROLE, Monitoring, monitoring_hosts, server_url
from stackfile.naming import PROJECT
from stackfile.problems import Problem, why_unreadable
from stackfile.validation.subject import Stack, problem, some

_MAKE = "docs/monitoring-server.md has the command that creates a self-signed one"
_KEY = "monitoringKey"


def check(stack: Stack) -> Iterator[Problem]:
    if "monitoring" in stack.broken or stack.broken & {"hosts", "inventory"}:
        return
    servers, section = monitoring_hosts(stack.listing.hosts), stack.file.monitoring
    if len(servers) > 1:
        names = [host.name for host in servers]
        where = stack.listing.places[names[1]](("role",))
        yield Problem(where, f"{some(names)} have it", "one monitoring server in a stack", "remove role from the others")
    if section is None:
        if servers:
            what = f"is missing, and {servers[0].name} has `role: {ROLE}`"
            yield problem(
                "monitoring", what, "the server's certificate", "add `monitoring: {certificateFile: inventory/monitoring.pem}`"
            )
        if _KEY in stack.secrets_set:
            yield problem(
                "monitoring", f"is missing: {PROJECT}:{_KEY} is set", fix=f"add it, or `pulumi config rm {PROJECT}:{_KEY}`"
            )
        return
    if not servers and not stack.listing.problems:
        fix = f"add a host with `role: {ROLE}`, or remove the section"
        yield problem("monitoring", "no host of the stack is the monitoring server", fix=fix)
    if servers and not server_url(section, servers[0]):
        what = f"is missing, and {servers[0].name} has no address that others could use"
        yield problem("monitoring.url", what, "how hosts and browsers reach it", "add `url: https://NAME`")
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
