"""One command on one host of a stack, with the stack's own login and sudo password."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from components.fleet.fleet import connection
from gpu_fleet.operations.engine import OperationError, secret
from gpu_fleet.operations.stack import Configuration
from gpu_fleet.provider.settings import Settings
from gpu_fleet.provider.ssh import SshTransport
from gpu_fleet.provider.transport import LocalTransport, Reader, Transport, TransportError
from gpu_fleet.safetext.terminal import printable_line
from gpu_fleet.stackfile.config import HostSpec, StackConfig
from gpu_fleet.stackfile.sudo_passwords import sudo_passwords

_TAIL: Final = 64 << 10  # bytes of a host's output


def run_on_host(
    host: HostSpec, command: Sequence[str], *, config: StackConfig, stack: str, found: Configuration, what: str, timeout_s: float
) -> str:
    """The last line of its standard output. `what`: the command's name in messages. Raises OperationError, ConfigErrors."""
    transport, password = _login(host, config, stack, found)
    return asyncio.run(run(transport, host, command, what=what, timeout_s=timeout_s, password=password))


def fetch_from_host(
    host: HostSpec, path: str, to: Path, *, config: StackConfig, stack: str, found: Configuration, what: str, timeout_s: float
) -> None:
    """A file that root may read there, written to `to` when it is whole. Raises OperationError, ConfigErrors."""
    transport, password = _login(host, config, stack, found)
    part = to.with_name(f".{to.name}")
    try:
        with part.open("wb") as file:
            asyncio.run(run(transport, host, ["cat", path], what=what, timeout_s=timeout_s, password=password, into=file.write))
        part.replace(to)
    finally:
        part.unlink(missing_ok=True)


def _login(host: HostSpec, config: StackConfig, stack: str, found: Configuration) -> tuple[Transport, str | None]:
    if host.connection == "local":
        return LocalTransport(), None
    ssh = config.ssh.model_dump(by_alias=True, exclude_none=True, mode="json")
    key = secret(stack, "sshPrivateKey") if "sshPrivateKey" in found.secrets else None
    return SshTransport(Settings(ssh=ssh, ssh_private_key=key)), _sudo_password(host.name, stack, found)


def _sudo_password(host: str, stack: str, found: Configuration) -> str | None:
    if "sudoPasswords" in found.secrets and (of_host := sudo_passwords(secret(stack, "sudoPasswords")).get(host)):
        return of_host
    return secret(stack, "sudoPassword").rstrip("\n") if "sudoPassword" in found.secrets else None


async def run(
    transport: Transport,
    host: HostSpec,
    command: Sequence[str],
    *,
    what: str,
    timeout_s: float,
    password: str | None = None,
    into: Callable[[bytes], object] | None = None,
) -> str:
    """As run_on_host. `password`: sudo's; None: the login uses sudo without one. `into`: gets all of standard output."""
    try:
        async with asyncio.timeout(timeout_s), transport.session(connection(host)) as session:
            # Without a prompt of its own: sudo writes it to the output of errors.
            sudo = ["sudo", *(("-S", "-p", "") if password else ("-n",)), "-u", "root"] if session.sudo else []
            running = await session.start([*sudo, *command])
            if sudo and password:
                running.stdin.write(f"{password}\n".encode())
                await running.stdin.drain()
            output, errors = await asyncio.gather(_last_line(running.stdout, into), _last_line(running.stderr))
            status = await running.wait()
    except TransportError as error:
        raise OperationError(f"{host.name}: {error}") from None
    except TimeoutError:
        raise OperationError(f"{host.name}: {what} did not finish within {timeout_s:.0f} s") from None
    if status != 0:
        raise OperationError(f"{host.name}: {what} failed ({status}): {errors or output or 'no output'}")
    return output


async def _last_line(stream: Reader, into: Callable[[bytes], object] | None = None) -> str:
    """Of all that a host prints, which may be more than fits here."""
    tail = b""
    while data := await stream.read(_TAIL):
        if into:
            into(data)
        tail = (tail + data)[-_TAIL:]
    lines = tail.decode(errors="replace").strip().splitlines()
    return printable_line(lines[-1]) if lines else ""
