"""`make known-hosts`: collects the SSH host keys of a stack for review. It trusts none of them by itself.

    python -m gpu_fleet.operations.known_hosts --stack us-west-training

The known hosts file itself is never written: new keys are added to a copy, FILE.new, and the command that moves the copy into
place is printed. A key that differs from the known one is reported and written nowhere: someone has to remove the old one first.
Bastions are hosts too: hosts behind one are queried only once the bastion's own key is trusted, because that takes a login.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import asyncssh

from components.fleet.fleet import connection
from gpu_fleet.operations.engine import OperationError, secret
from gpu_fleet.operations.output import run
from gpu_fleet.operations.stack import Configuration, configuration, enter_project
from gpu_fleet.operations.table import table
from gpu_fleet.provider.known_hosts import KnownHosts
from gpu_fleet.provider.settings import Settings
from gpu_fleet.provider.ssh import Limits, SshTransport
from gpu_fleet.provider.transport import TransportError
from gpu_fleet.stackfile.config import ConfigErrors, HostList

DEFAULT_FILE = "inventory/known_hosts"  # where the stack file names none
_LIMITS = Limits(dial_s=5, login_s=15)  # two dials: 10 s for a host that does not answer, 15 s for one that accepts and stalls
State = Literal["known", "authority", "new", "unreachable", "CHANGED", "REVOKED"]
_LOUD: tuple[State, ...] = ("CHANGED", "REVOKED")
_PRIVATE_KEY = "sshPrivateKey"  # the name of the secret


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """An SSH server. `connection`: how the provider connects to it."""

    name: str
    address: str
    port: int
    connection: dict[str, Any] = field(repr=False)

    @property
    def pattern(self) -> str:
        """As in known_hosts files."""
        return self.address if self.port == 22 else f"[{self.address}]:{self.port}"


@dataclass(frozen=True, kw_only=True)
class Finding:
    endpoint: Endpoint
    state: State
    key: asyncssh.SSHKey | None = None
    detail: str = ""


def endpoints(hosts: HostList) -> list[Endpoint]:
    """Every SSH host of the stack and every bastion whose key is not in the stack file itself."""
    found: dict[tuple[str, int, str], Endpoint] = {}
    for spec in hosts.hosts.values():
        if spec.connection != "ssh" or spec.lost:
            continue
        if (jump := spec.bastion) and not jump.host_key:
            place = (jump.host, jump.port, "")
            alone = {"address": jump.host, "port": jump.port}
            found.setdefault(place, Endpoint(name=f"bastion {jump.host}", address=jump.host, port=jump.port, connection=alone))
        if not spec.host_key:
            place = (spec.address, spec.port, spec.name)
            found[place] = Endpoint(name=spec.name, address=spec.address, port=spec.port, connection=connection(spec))
    return list(found.values())


async def collect(wanted: Iterable[Endpoint], transport: SshTransport, trusted: KnownHosts) -> list[Finding]:
    """The keys of all endpoints, queried at once within the transport's limits."""
    return list(await asyncio.gather(*(_query(endpoint, transport, trusted) for endpoint in wanted)))


async def _query(endpoint: Endpoint, transport: SshTransport, trusted: KnownHosts) -> Finding:
    keys, authorities, revoked = trusted.match(endpoint.address, endpoint.port)
    if authorities and not keys:
        return Finding(endpoint=endpoint, state="authority")
    try:
        shown = await transport.shown_key(endpoint.connection, keys)
    except TransportError as error:
        jump = endpoint.connection.get("bastion")
        if jump and error.code == "host-key":
            detail = f"behind the bastion {jump['host']}, whose key is not trusted yet: accept that key, then run this again"
            return Finding(endpoint=endpoint, state="unreachable", detail=detail)
        return Finding(endpoint=endpoint, state="unreachable", detail=str(error))
    return compare(endpoint, shown, keys, revoked)


def compare(
    endpoint: Endpoint, shown: asyncssh.SSHKey, known: Sequence[asyncssh.SSHKey], revoked: Sequence[asyncssh.SSHKey] = ()
) -> Finding:
    if shown in revoked:
        return Finding(
            endpoint=endpoint,
            state="REVOKED",
            key=shown,
            detail="revoked in the known hosts file: create a new key on the host",
        )
    if not known:
        return Finding(endpoint=endpoint, state="new", key=shown)
    if shown in known:
        return Finding(endpoint=endpoint, state="known", key=shown)
    return Finding(endpoint=endpoint, state="CHANGED", key=shown, detail="known: " + ", ".join(map(described, known)))


def described(key: asyncssh.SSHKey) -> str:
    return f"{key.get_algorithm()} {key.get_fingerprint()}"


def proposal(text: str, findings: Iterable[Finding]) -> str:
    """The known hosts file with a line for each new key that names the host and the fingerprint, for a readable diff."""
    lines = []
    for one in findings:
        if one.state == "new" and one.key:
            kind, body = one.key.export_public_key().decode().split()[:2]
            lines.append(f"{one.endpoint.pattern} {kind} {body} {one.endpoint.name} {one.key.get_fingerprint()}\n")
    return text + ("\n" if text and not text.endswith("\n") else "") + "".join(lines)


def report(findings: Sequence[Finding], file: str) -> str:
    """Every key that is not known yet, then what is wrong, then what to do."""
    order: tuple[State, ...] = ("new", "unreachable", *_LOUD)
    shown = sorted((one for one in findings if one.state in order), key=lambda one: order.index(one.state))
    rows = [(one.endpoint.name, one.endpoint.pattern, one.state, _key_text(one)) for one in shown]
    count = {state: sum(one.state == state for one in findings) for state in ("known", "authority", *order)}
    paragraphs = [table(("HOST", "ADDRESS", "STATE", "KEY"), rows)] if rows else []
    paragraphs.append(", ".join(f"{number} {_WORDS[state]}" for state, number in count.items() if number) + ".")
    if count["new"]:
        paragraphs.append(
            "Compare the new fingerprints with those printed on the console of each host by:\n"
            "    ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub\n"
            f"They are the last lines of {file}.new. To accept all of them:\n"
            f"    mv {file}.new {file}"
        )
    if loud := [one for one in findings if one.state in _LOUD]:
        what = "1 HOST KEY HAS CHANGED" if len(loud) == 1 else f"{len(loud)} HOST KEYS HAVE CHANGED"
        paragraphs.append(
            f"{'!' * 20} {what} {'!' * 20}\n"
            "This may be a man-in-the-middle attack. First find out why the key changed: was the host re-imaged or replaced, or\n"
            "is another machine at this address? Nothing was written for it."
        )
    if changed := [one.endpoint.pattern for one in loud if one.state == "CHANGED"]:
        commands = "\n".join(f"    ssh-keygen -R '{pattern}' -f {file}" for pattern in changed)
        paragraphs.append("Once you have confirmed the new key, remove the old one and collect again:\n" + commands)
    return "\n\n".join(paragraphs)


def _key_text(one: Finding) -> str:
    return "\n".join(filter(None, [described(one.key) if one.key else "", one.detail]))


_WORDS: dict[State, str] = {
    "known": "known and unchanged",
    "authority": "trusted through a certificate authority",
    "new": "new",
    "unreachable": "unreachable",
    "CHANGED": "CHANGED",
    "REVOKED": "REVOKED",
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu_fleet.operations.known_hosts", description="Collect host keys.")
    parser.add_argument("--stack", required=True)
    stack = parser.parse_args(arguments).stack
    try:
        enter_project()
        found = configuration(stack)
        return collect_for(found.hosts(), lambda: private_key_of(stack, found))
    except (OperationError, ConfigErrors) as error:
        print(error, file=sys.stderr)
        return 1


def private_key_of(stack: str, found: Configuration) -> str | None:
    """The secret gpu-fleet:sshPrivateKey, if the stack has one. Raises OperationError."""
    return secret(stack, _PRIVATE_KEY) if _PRIVATE_KEY in found.secrets else None


def collect_for(hosts: HostList, private_key: Callable[[], str | None] = lambda: None) -> int:
    """`private_key`: returns the secret one; called only when a login to a bastion is needed.

    Exit status: 0 when every key is known or new, 1 when one differs or could not be collected. Raises OperationError.
    """
    name = hosts.ssh.known_hosts_file or DEFAULT_FILE
    file = hosts.local_path(name)
    text, trusted = _trusted(file, name)
    wanted = endpoints(hosts)
    if not wanted:
        print("No host key to collect: the stack has no SSH host that is verified by a known hosts file.")
        return 0
    print(f"Collecting host keys from {len(wanted)} SSH servers, within {_LIMITS.login_s:.0f} s each.\n", flush=True)
    needs_login = any(endpoint.connection.get("bastion") for endpoint in wanted)
    settings = Settings(ssh={"knownHostsFile": str(file)}, ssh_private_key=private_key() if needs_login else None)
    findings = asyncio.run(collect(wanted, SshTransport(settings, _LIMITS), trusted))
    review = file.with_name(f"{file.name}.new")
    if any(one.state == "new" for one in findings):
        review.parent.mkdir(parents=True, exist_ok=True)
        review.write_text(proposal(text, findings))
    else:
        review.unlink(missing_ok=True)  # of an earlier run, whose keys are known by now or gone
    print(report(findings, name))
    if not hosts.ssh.known_hosts_file:
        print(f"\nThe stack file names no known hosts file yet: add `gpu-fleet:ssh: {{knownHostsFile: {DEFAULT_FILE}}}` to it.")
    return int(any(one.state in ("unreachable", *_LOUD) for one in findings))


def _trusted(file: Path, name: str) -> tuple[str, KnownHosts]:
    """The known hosts file, which need not exist yet."""
    try:
        text = file.read_text() if file.exists() else ""
        return text, KnownHosts(text)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise OperationError(f"gpu-fleet:ssh.knownHostsFile: {name} cannot be read: {error}") from None


if __name__ == "__main__":
    run(main)
