"""Logging in: host keys, private keys and the secrets about them, looked at before the first host is contacted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from gpu_fleet.stackfile.naming import PROJECT
from gpu_fleet.stackfile.patterns import KnownHosts
from gpu_fleet.stackfile.problems import Problem, why_unreadable
from gpu_fleet.stackfile.validation.subject import Stack, problem, some


def check(stack: Stack) -> Iterator[Problem]:
    if not stack.broken & {"hosts", "inventory"}:
        yield from _secrets(stack)
    if "ssh" not in stack.broken:
        yield from _known_hosts(stack)
    if "sshPrivateKey" not in stack.secrets_set and stack.is_deployed_from_here:
        yield from _private_keys(stack)


def _secrets(stack: Stack) -> Iterator[Problem]:
    if "sshPrivateKey" in stack.secrets_set and not stack.ssh_hosts:
        remove = f"`pulumi config rm {PROJECT}:sshPrivateKey`"
        yield problem("sshPrivateKey", "is set, and no host is reached by SSH", fix=remove)
    for key in ("sudoPassword", "sudoPasswords"):
        if key in stack.secrets_set and not any(host.sudo for host in stack.ssh_hosts):
            fix = f"`pulumi config rm {PROJECT}:{key}`, or set `sudo: true`"
            yield problem(key, "is set, and sudo is used on no host", fix=fix)


def _known_hosts(stack: Stack) -> Iterator[Problem]:
    """Host keys are always verified, so a host without one is refused now and not after the others were changed."""
    hosts = [host for host in stack.ssh_hosts if not host.host_key]
    if not hosts:
        return
    where, collect = "ssh.knownHostsFile", "`make known-hosts STACK=NAME` collects the keys for review"
    name = stack.listing.ssh.known_hosts_file
    if name is None:
        what = f"is missing, and without it the key of {some([host.name for host in hosts])} cannot be verified"
        yield problem(where, what, "a known_hosts file, or a hostKey for each host", f"{collect}; write inventory/known_hosts")
        return
    try:
        known = KnownHosts(stack.listing.local_path(name).read_text())
    except (FileNotFoundError, IsADirectoryError, PermissionError, UnicodeDecodeError) as error:
        yield problem(where, f"{name} {why_unreadable(error)}", "a known_hosts file", collect)
        return
    except ValueError as error:
        yield problem(where, f"{name}: {error}", "lines as ssh-keyscan prints them", f"correct the line; {collect}")
        return
    without = [hosts[index].name for index in known.missing([(host.address, host.port) for host in hosts])]
    if without:
        yield problem(where, f"{name} has no key for {some(without)}", "a key or a certificate authority for each host", collect)
    bastions = sorted({(host.bastion.host, host.bastion.port) for host in hosts if host.bastion and not host.bastion.host_key})
    if missing := [bastions[index][0] for index in known.missing(bastions)]:
        yield problem(where, f"{name} has no key for the bastion {some(missing)}", "a key for it, or its hostKey", collect)


def _private_keys(stack: Stack) -> Iterator[Problem]:
    ssh = stack.listing.ssh
    common = ssh.private_key_file
    places = {common: f"{PROJECT}:ssh.privateKeyFile"} if common and stack.ssh_hosts else {}
    for host in stack.ssh_hosts:
        if host.private_key_file and host.private_key_file not in places:
            places[host.private_key_file] = stack.listing.places[host.name](("privateKeyFile",))
    for file, where in places.items():
        if error := _error_of_key(stack.listing.local_path(file)):
            yield Problem(where, *error)


def _error_of_key(file: Path) -> tuple[str, str, str] | None:
    """(what, expected, fix), or None when the key can be used without a prompt. As in OpenSSH, others must not read it, and the
    ssh-agent may hold the private half; whether it does is seen at the login."""
    import asyncssh  # here because it takes 0.2 s to load, and a stack without key files does not need it

    expected = "a private key that you alone can read, without passphrase or in the ssh-agent"
    has_agent, load = "SSH_AUTH_SOCK" in os.environ, "load the key into an ssh-agent (`ssh-add`)"
    try:
        status = file.stat()
        content = file.read_bytes()
        asyncssh.import_private_key(content)
        if status.st_mode & 0o077 and status.st_uid == os.getuid():
            return f"{file} can be read by others (mode {status.st_mode & 0o777:04o})", expected, f"`chmod 600 {file}`"
    except OSError as error:
        if has_agent and isinstance(error, FileNotFoundError) and file.with_name(f"{file.name}.pub").exists():
            return None
        return f"{file} {why_unreadable(error)}", expected, "correct the path, or remove the key to use the ssh-agent"
    except asyncssh.KeyImportError as error:
        if "Passphrase" in str(error):  # asyncssh has no type of its own for it
            return None if has_agent else (f"{file} has a passphrase", expected, load)
        try:
            asyncssh.import_public_key(content)
        except asyncssh.KeyImportError:
            return f"{file} is not a private key", expected, "write the path of a key in OpenSSH's format"
        return None if has_agent else (f"{file} is a public key", expected, f"{load}, or write the path without .pub")
    return None
