"""`make known-hosts`: collects the public keys that the hosts of a stack show, for a person to review. It trusts none of them.

    python -m operations.known_hosts --stack us-west-training

The known hosts file itself is never written: new keys go into a copy beside it, FILE.new, and the one command that puts the copy
in its place is printed. A key that differs from the known one is told and goes nowhere: somebody has to take the old one out.
Bastions are hosts too: what lies behind one is asked only once the bastion's own key is trusted, because that takes a login.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import asyncssh
import yaml

from components.fleet.fleet import connection
from operations.stack_file import OperationError, stack_file
from operations.table import table
from provider.settings import Settings
from provider.ssh import Limits, SshTransport
from provider.transport import TransportError
from stackfile.config import ConfigErrors, HostList, hosts_named_in

DEFAULT_FILE = "inventory/known_hosts"  # where the stack file names none
_LIMITS = Limits(dial_s=5, login_s=15)  # two dials: 10 s for a host that does not answer, 15 s for one that accepts and stalls
State = Literal["known", "authority", "new", "unreachable", "CHANGED", "REVOKED"]
_LOUD: tuple[State, ...] = ("CHANGED", "REVOKED")
_SECRET_KEY = "gpu-fleet:sshPrivateKey"  # noqa: S105 - its name


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Somewhere that shows a host key. `connection`: how the provider gets there."""

    name: str
    address: str
    port: int
    connection: dict[str, Any] = field(repr=False)

    @property
    def pattern(self) -> str:
        """As known_hosts files write it."""
        return self.address if self.port == 22 else f"[{self.address}]:{self.port}"


@dataclass(frozen=True, kw_only=True)
class Finding:
    endpoint: Endpoint
    state: State
    key: asyncssh.SSHKey | None = None
    detail: str = ""


def endpoints(hosts: HostList) -> list[Endpoint]:
    """Every SSH host of the stack, and the bastions on the way, whose key is not written in the stack file itself."""
    found: dict[tuple[str, int, str], Endpoint] = {}
    for spec in hosts.hosts.values():
        if spec.connection != "ssh" or spec.lost:
            continue
        way = connection(spec)
        if (jump := spec.bastion) and not jump.host_key:
            place = (jump.host, jump.port, "")
            alone = {"address": jump.host, "port": jump.port}
            found.setdefault(place, Endpoint(name=f"bastion {jump.host}", address=jump.host, port=jump.port, connection=alone))
        if not spec.host_key:
            place = (spec.address, spec.port, spec.name)
            found[place] = Endpoint(name=spec.name, address=spec.address, port=spec.port, connection=way)
    return list(found.values())


async def collect(wanted: Iterable[Endpoint], transport: SshTransport, trusted: asyncssh.SSHKnownHosts) -> list[Finding]:
    """What every endpoint shows, all of them asked at once within the transport's limits."""
    return list(await asyncio.gather(*(_ask(endpoint, transport, trusted) for endpoint in wanted)))


async def _ask(endpoint: Endpoint, transport: SshTransport, trusted: asyncssh.SSHKnownHosts) -> Finding:
    keys, authorities, revoked, *_ = trusted.match(endpoint.address, "", endpoint.port if endpoint.port != 22 else None)
    if authorities and not keys:
        return Finding(endpoint=endpoint, state="authority")
    try:
        shown = await transport.shown_key(endpoint.connection, keys)
    except TransportError as error:
        jump = endpoint.connection.get("bastion")
        if jump and error.code == "host-key":
            detail = f"behind the bastion {jump['host']}, whose key is not trusted yet: accept it and run this again"
            return Finding(endpoint=endpoint, state="unreachable", detail=detail)
        return Finding(endpoint=endpoint, state="unreachable", detail=str(error))
    return judge(endpoint, shown, keys, revoked)


def judge(
    endpoint: Endpoint, shown: asyncssh.SSHKey, known: Sequence[asyncssh.SSHKey], revoked: Sequence[asyncssh.SSHKey] = ()
) -> Finding:
    if shown in revoked:
        return Finding(
            endpoint=endpoint, state="REVOKED", key=shown, detail="revoked in the known hosts file: make a new key on the host"
        )
    if not known:
        return Finding(endpoint=endpoint, state="new", key=shown)
    if shown in known:
        return Finding(endpoint=endpoint, state="known", key=shown)
    return Finding(endpoint=endpoint, state="CHANGED", key=shown, detail="known: " + ", ".join(map(described, known)))


def described(key: asyncssh.SSHKey) -> str:
    return f"{key.get_algorithm()} {key.get_fingerprint()}"


def proposal(text: str, findings: Iterable[Finding]) -> str:
    """The known hosts file with a line for each new key, which says whose it is and its fingerprint, to be read in a diff."""
    lines = []
    for one in findings:
        if one.state == "new" and one.key:
            kind, body = one.key.export_public_key().decode().split()[:2]
            lines.append(f"{one.endpoint.pattern} {kind} {body} {one.endpoint.name} {one.key.get_fingerprint()}\n")
    return text + ("\n" if text and not text.endswith("\n") else "") + "".join(lines)


def report(findings: Sequence[Finding], file: str) -> str:
    """What a person reads: every key that is not known yet, then what is wrong, then what to do."""
    order: tuple[State, ...] = ("new", "unreachable", *_LOUD)
    told = sorted((one for one in findings if one.state in order), key=lambda one: order.index(one.state))
    rows = [(one.endpoint.name, one.endpoint.pattern, one.state, _what_it_shows(one)) for one in told]
    count = {state: sum(one.state == state for one in findings) for state in ("known", "authority", *order)}
    paragraphs = [table(("HOST", "ADDRESS", "STATE", "KEY IT SHOWS"), rows)] if rows else []
    paragraphs.append(", ".join(f"{number} {_WORDS[state]}" for state, number in count.items() if number) + ".")
    if count["new"]:
        paragraphs.append(
            "Compare the new fingerprints with those that the hosts tell themselves, on a console of theirs:\n"
            "    ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub\n"
            f"They are the last lines of {file}.new. This accepts all of them:\n"
            f"    mv {file}.new {file}"
        )
    if loud := [one for one in findings if one.state in _LOUD]:
        what = "1 host key is NOT what it was" if len(loud) == 1 else f"{len(loud)} host keys are NOT what they were"
        paragraphs.append(
            f"{'!' * 20} {what} {'!' * 20}\n"
            "Somebody may stand between you and the host. Find out why first: re-imaged, replaced, another machine at this\n"
            "address? Nothing was written for it."
        )
    if changed := [one.endpoint.pattern for one in loud if one.state == "CHANGED"]:
        commands = "\n".join(f"    ssh-keygen -R '{pattern}' -f {file}" for pattern in changed)
        paragraphs.append("Once you know that it is right, take the old key out and collect again:\n" + commands)
    return "\n\n".join(paragraphs)


def _what_it_shows(one: Finding) -> str:
    return "\n".join(filter(None, [described(one.key) if one.key else "", one.detail]))


_WORDS: dict[State, str] = {
    "known": "known and unchanged",
    "authority": "trusted through a certificate authority",
    "new": "new",
    "unreachable": "not reached",
    "CHANGED": "CHANGED",
    "REVOKED": "REVOKED",
}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m operations.known_hosts", description="Collect host keys.")
    parser.add_argument("--stack", required=True)
    stack = parser.parse_args(arguments).stack
    try:
        file = stack_file(stack)
        return collect_for(hosts_named_in(file), lambda: secret_key(stack, file))
    except (OperationError, ConfigErrors) as error:
        print(error, file=sys.stderr)
        return 1


def secret_key(stack: str, file: Path) -> str | None:
    """gpu-fleet:sshPrivateKey, if the stack has one: it is encrypted, and pulumi opens it. Raises OperationError."""
    if _SECRET_KEY not in ((yaml.safe_load(file.read_text()) or {}).get("config") or {}):
        return None
    command = ["pulumi", "--non-interactive", "config", "get", _SECRET_KEY, "--stack", stack]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise OperationError("pulumi is not on the PATH: `make known-hosts` brings its own") from None
    if done.returncode != 0:
        raise OperationError(f"{_SECRET_KEY}, the key for the bastion, cannot be read: {done.stderr.strip()}")
    return done.stdout


def collect_for(hosts: HostList, private_key: Callable[[], str | None] = lambda: None) -> int:
    """`private_key`: gives the secret one, and is asked only when a login is needed, on a bastion.

    Exit status: 0 when every key is known or new, 1 when one differs or could not be had. Raises OperationError.
    """
    name = hosts.ssh.known_hosts_file or DEFAULT_FILE
    file = hosts.local_path(name)
    text, trusted = _trusted(file, name)
    wanted = endpoints(hosts)
    if not wanted:
        print("No host key to collect: the stack has no host that is reached by SSH and verified by a known hosts file.")
        return 0
    print(f"Asking {len(wanted)} for their host keys; one that stalls is given {_LIMITS.login_s:.0f} s.\n", flush=True)
    needs_login = any(endpoint.connection.get("bastion") for endpoint in wanted)
    settings = Settings(ssh={"knownHostsFile": str(file)}, ssh_private_key=private_key() if needs_login else None)
    findings = asyncio.run(collect(wanted, SshTransport(settings, _LIMITS), trusted))
    review = file.with_name(f"{file.name}.new")
    if any(one.state == "new" for one in findings):
        review.parent.mkdir(parents=True, exist_ok=True)
        review.write_text(proposal(text, findings))
    else:
        review.unlink(missing_ok=True)  # of an earlier run: what it proposed is known by now, or not shown any more
    print(report(findings, name))
    if not hosts.ssh.known_hosts_file:
        print(f"\nThe stack file names no known hosts file yet: write `gpu-fleet:ssh: {{knownHostsFile: {DEFAULT_FILE}}}`.")
    return int(any(one.state in ("unreachable", *_LOUD) for one in findings))


def _trusted(file: Path, name: str) -> tuple[str, asyncssh.SSHKnownHosts]:
    """The known hosts file, which need not be there yet."""
    try:
        text = file.read_text() if file.exists() else ""
        return text, asyncssh.import_known_hosts(text)
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise OperationError(f"gpu-fleet:ssh.knownHostsFile: {name} cannot be read: {error}") from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
