"""Hosts reached by SSH: one verified connection per host and operation, one shared connection per bastion.

Host keys are always verified. A host that does not answer is dialled twice. One that refuses the login or shows another key is
not tried again: every attempt may count towards a lock-out, and a wrong key does not become right. The same goes for a
bastion, which is tried once for all hosts behind it."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
import os
import shlex
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import asyncssh

from gpu_fleet.provider.identities import Identities
from gpu_fleet.provider.known_hosts import KnownHosts, Trusted
from gpu_fleet.provider.settings import Settings
from gpu_fleet.provider.transport import LOST, TransportError

_DIALS = 2  # to a host that does not answer; a refusal is an answer
_KEEPALIVE_S = 15  # three unanswered ones end a connection, so a host that dies is noticed within a minute
_GRACE_S = 3
_SESSION_ENDS_S = 0.2  # until sshd has closed the previous command's session
# asyncssh prefers ChaCha20, which is slower on processors with AES instructions; programs are large.
_CIPHERS = "^aes128-gcm@openssh.com,aes256-gcm@openssh.com"
_SECOND_FACTORS = ("keyboard-interactive", "password")  # declined; that they are asked for is worth an error of its own
_PREFERRED_HOST_KEYS = ("ssh-ed25519", "ecdsa-*")  # asyncssh prefers RSA


@dataclass(frozen=True, kw_only=True)
class Limits:
    """`dial_s`: for one of two dials, so that a host which drops packets costs 20 s. `login_s`: for the login after it.
    `start_s`: for a command to start; with host.READY_TIMEOUT_S a host that accepts and stalls costs 60 s. `parallel`:
    connections at once. `logins`: logins at once; they cost CPU time here, so more at a time are not faster, and on a busy
    machine hosts would look as if they stalled. `per_bastion`: connections through one bastion, each of which costs it a
    descriptor and a channel of the one connection to it."""

    dial_s: float = 10.0
    login_s: float = 25.0
    start_s: float = 10.0
    parallel: int = 300
    logins: int = 50
    per_bastion: int = 100


class SshTransport:
    def __init__(self, settings: Settings, limits: Limits = Limits()):  # noqa: B008 - frozen
        self._settings = settings
        self._limits = limits
        self._slots = asyncio.Semaphore(limits.parallel)
        self._logins = asyncio.Semaphore(limits.logins)
        self._bastions: dict[tuple[Any, ...], _Bastion] = {}

    @contextlib.asynccontextmanager
    async def session(self, connection: dict[str, Any]) -> AsyncIterator[_SshSession]:
        async with self._route(connection) as (target, bastion), contextlib.AsyncExitStack() as stack:
            login = await self._login(target, bastion)
            stack.push_async_callback(_close, login)
            user = target.get("user")
            yield _SshSession(login, sudo=target.get("sudo", user != "root"), start_s=self._limits.start_s)

    async def shown_key(self, connection: dict[str, Any], known: Sequence[asyncssh.SSHKey] = ()) -> asyncssh.SSHKey:
        """The host key that is presented there, without trusting it and without a login; a bastion on the way is verified.

        A host has keys of several types: the types in `known` are requested first, so that the two can be compared.
        """
        async with self._route(connection) as (target, bastion):
            address, port, where = _endpoint(target)
            algorithms = [algorithm.decode() for key in known for algorithm in key.sig_algorithms]
            try:
                async with asyncio.timeout(self._limits.login_s):
                    key = await asyncssh.get_server_host_key(
                        address,
                        port,
                        # asyncssh's type requires `close` too, which it calls only on tunnels that it opened itself (2.24.1).
                        tunnel=_Dialer(bastion, where, self._limits.dial_s),  # type: ignore[arg-type]
                        server_host_key_algs="^" + ",".join([*algorithms, *_PREFERRED_HOST_KEYS]),
                        config=None,
                    )
            except TimeoutError:
                raise TransportError("unreachable", self._stalled(where)) from None
            except asyncssh.DisconnectError as error:
                raise TransportError("unreachable", f"{where} ended the connection: {error.reason}") from None
            except OSError as error:
                raise TransportError("unreachable", f"{where}: {_reason(error)}") from None
            assert key is not None, "only GSS key exchanges present none, and none is offered"
            return key

    @contextlib.asynccontextmanager
    async def _route(self, connection: dict[str, Any]) -> AsyncIterator[tuple[Mapping[str, Any], _Bastion | None]]:
        """Waits until one more connection may be opened. The settings of its target, and the bastion that it goes through."""
        target = {**self._settings.ssh, **{key: value for key, value in connection.items() if value not in (None, "")}}
        async with self._slots, contextlib.AsyncExitStack() as stack:
            bastion = None
            if target.get("bastion"):
                bastion = self._bastion(target)
                await stack.enter_async_context(bastion.slots)
                await bastion.connection()
            yield target, bastion

    def _bastion(self, target: Mapping[str, Any]) -> _Bastion:
        jump = target["bastion"]
        place = {
            "address": jump["host"],
            "port": jump.get("port"),
            "user": jump.get("user") or target.get("user"),
            "hostKey": jump.get("hostKey"),
            "privateKeyFile": target.get("privateKeyFile"),
        }
        key = tuple(place.values())
        if key not in self._bastions:
            name = _endpoint(place, "bastion ")[2]
            self._bastions[key] = _Bastion(name, self._limits.per_bastion, lambda: self._login(place, None, role="bastion "))
        return self._bastions[key]

    async def _login(self, target: Mapping[str, Any], bastion: _Bastion | None, role: str = "") -> asyncssh.SSHClientConnection:
        address, port, where = _endpoint(target, role)
        known_hosts = self._known_hosts(target, where)
        keys = await self._identities.of(target.get("privateKeyFile"))
        watch = _Watch(known_hosts, where, keys)
        dialer = _Dialer(bastion, where, self._limits.dial_s)
        try:
            async with dialer.in_turn(self._logins, self._limits.login_s):
                return await asyncssh.connect(
                    address,
                    port,
                    tunnel=dialer,
                    client_factory=lambda: watch,
                    known_hosts=known_hosts,
                    username=target.get("user") or (),
                    client_keys=None,  # `watch` hands them out
                    preferred_auth=("publickey", *_SECOND_FACTORS),
                    encryption_algs=_CIPHERS,
                    login_timeout=0,  # the limit of in_turn applies
                    keepalive_interval=_KEEPALIVE_S,
                    keepalive_count_max=3,
                    config=None,  # ~/.ssh/config would make the result depend on the user
                )
        except TimeoutError:
            raise TransportError("unreachable", self._stalled(where)) from None
        except asyncssh.HostKeyNotVerifiable as error:
            raise TransportError("host-key", watch.reason or f"{where}: {error.reason}") from None
        except asyncssh.PermissionDenied:
            raise TransportError("auth", self._refused(target, where, watch)) from None
        except asyncssh.DisconnectError as error:
            if "Too many authentication failures" in error.reason:
                gave_up = (
                    f"{self._refused(target, where, watch)}; it gave up after {watch.offered} keys: name one by `privateKeyFile`"
                )
                raise TransportError("auth", gave_up) from None
            if watch.offered:  # PAM denies an account so, with a notice or without
                user = _user(target)
                why = watch.notice or f"{error.reason}; its log says why (`journalctl -u ssh` or `-u sshd`)"
                raise TransportError("auth", f"{where} ended the login of {user}: {why}") from None
            raise TransportError("unreachable", f"{where} ended the connection: {error.reason}") from None
        except OSError as error:
            raise TransportError("unreachable", f"{where}: {_reason(error)}") from None

    def _stalled(self, where: str) -> str:
        return f"{where} accepted the connection and then sent nothing for {self._limits.login_s:.0f} s"

    def _refused(self, target: Mapping[str, Any], where: str, watch: _Watch) -> str:
        user, path = _user(target), target.get("privateKeyFile")
        if watch.further:
            return (
                f"{where} accepted the key of {user} and requires {watch.further} besides, which cannot be given here; exempt "
                f"the login in its sshd_config (`Match User {user}`, `AuthenticationMethods publickey`)"
            )
        if self._settings.ssh_private_key:
            key = "the key of gpu-fleet:sshPrivateKey"
        elif path:
            key = f"the key {path}" + self._identities.validity(path, target.get("user"))
        elif os.environ.get("SSH_AUTH_SOCK"):
            key = "any key of the ssh-agent or of ~/.ssh"
        else:
            key = "any key of ~/.ssh, and there is no ssh-agent (SSH_AUTH_SOCK is not set)"
        notice = f': "{watch.notice}"' if watch.notice else ""
        given = "" if target.get("user") else " (who runs this program: the host has no `user`)"
        return f"{where} refused the login of {user}{given} with {key}{notice}"

    @cached_property
    def _identities(self) -> Identities:
        """The secret key takes precedence, so that CI can use a stack file or inventory that names files in somebody's home."""
        return Identities(
            secret=self._settings.ssh_private_key,
            agent=os.environ.get("SSH_AUTH_SOCK"),
            agent_timeout_s=self._limits.login_s,
        )

    def _known_hosts(self, target: Mapping[str, Any], where: str) -> Trusted:
        if not (line := target.get("hostKey")):
            address, port, _ = _endpoint(target)
            return self._known_hosts_file.match(address, port)
        try:
            return [asyncssh.import_public_key(line)], [], []
        except asyncssh.KeyImportError:
            raise TransportError("host-key", f"{where}: hostKey is not a public key in OpenSSH's format") from None

    @cached_property
    def _known_hosts_file(self) -> KnownHosts:
        given = self._settings.ssh.get("knownHostsFile")
        path = Path(given or "~/.ssh/known_hosts").expanduser()
        try:
            return KnownHosts(path.read_text())
        except FileNotFoundError:
            if not given:
                return KnownHosts()
            raise TransportError(
                "host-key", f"the known hosts file {given} does not exist; `make known-hosts` collects the keys"
            ) from None
        except OSError as error:
            raise TransportError("host-key", f"the known hosts file {given or path} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise TransportError("host-key", f"the known hosts file {given or path} cannot be used: {error}") from None


class _Bastion:
    """One shared connection. Hosts that need it while it is being made wait for it, and a broken one is made again.

    A bastion that was never reached, or refused the login, is not tried again in this run: that costs every host behind it the
    same 20 s, and each attempt may count towards a lock-out. The host that tried reports the cause, the others refer to it."""

    def __init__(self, name: str, parallel: int, login: Callable[[], Awaitable[asyncssh.SSHClientConnection]]):
        self.name = name
        self.slots = asyncio.Semaphore(parallel)
        self._login = login
        self._pending: asyncio.Task[asyncssh.SSHClientConnection] | None = None
        self._has_connected = False
        self._refusal: TransportError | None = None

    async def connection(self) -> asyncssh.SSHClientConnection:
        if self._refusal:
            raise self._referring(self._refusal)
        is_first = self._pending is None or (self._pending.done() and not self._is_usable(self._pending))
        if is_first:
            self._pending = asyncio.create_task(self._connect())
        assert self._pending is not None, "made above"
        try:
            return await asyncio.shield(self._pending)
        except TransportError as error:
            raise error if is_first else self._referring(error) from None

    async def _connect(self) -> asyncssh.SSHClientConnection:
        try:
            login = await self._login()
        except TransportError as error:
            if not self._has_connected or error.code in ("auth", "host-key"):
                self._refusal = error
            raise
        self._has_connected = True
        return login

    def _referring(self, error: TransportError) -> TransportError:
        what = {"auth": "refused the login", "host-key": "presented a host key that is not trusted"}.get(error.code, "failed")
        return TransportError(error.code, f"{self.name} {what}; the first host behind it reports why")

    @staticmethod
    def _is_usable(pending: asyncio.Task[asyncssh.SSHClientConnection]) -> bool:
        return not pending.cancelled() and pending.exception() is None and not pending.result().is_closed()


class _Dialer:
    """Takes the place of a tunnel in asyncssh: opens the byte stream, so that the dial has its own limit and a second attempt,
    and the login can wait for its turn."""

    def __init__(self, bastion: _Bastion | None, where: str, timeout_s: float):
        self._bastion = bastion
        self._where = where
        self._timeout_s = timeout_s
        self._turn: Callable[[], Awaitable[None]] | None = None

    @contextlib.asynccontextmanager
    async def in_turn(self, turns: asyncio.Semaphore, limit_s: float) -> AsyncIterator[None]:
        """Wraps a login: what was dialled inside is read once it is its turn, and from then on the limit applies."""
        async with contextlib.AsyncExitStack() as stack, asyncio.timeout(None) as limit:

            async def begin() -> None:
                await stack.enter_async_context(turns)
                limit.reschedule(asyncio.get_running_loop().time() + limit_s)

            self._turn = begin
            yield

    async def create_connection(self, factory: Any, host: str, port: int) -> tuple[Any, Any]:
        stream, connection = await self._dial(factory, host, port)
        if self._turn:
            stream.pause_reading()  # or the login would begin at once
            await self._turn()
            stream.resume_reading()
        return stream, connection

    async def _dial(self, factory: Any, host: str, port: int) -> tuple[Any, Any]:
        broken = ""
        for _ in range(_DIALS):
            try:
                # Not within the limit of the dial: it has its own, and a connection to the bastion that broke is made again.
                through = await self._bastion.connection() if self._bastion else None
                open_stream = through.create_connection if through else asyncio.get_running_loop().create_connection
                async with asyncio.timeout(self._timeout_s):
                    return await open_stream(factory, host, port)
            except TimeoutError:
                broken = ""
                continue
            except asyncssh.ChannelOpenError as error:
                if through is None or not through.is_closed():
                    raise TransportError("unreachable", f"{self._where}: {_reason(error)}") from None
                broken = error.reason
            except asyncssh.DisconnectError as error:
                broken = error.reason
            except OSError as error:
                raise TransportError("unreachable", f"{self._where}: {_reason(error)}") from None
        by = f" by {self._bastion.name}" if self._bastion else ""
        if broken:
            raise TransportError("unreachable", f"{self._where}: the connection{by} broke: {broken}")
        raise TransportError("unreachable", f"{self._where}: no answer{by} within {self._timeout_s * _DIALS:.0f} s")


def _endpoint(target: Mapping[str, Any], role: str = "") -> tuple[str, int, str]:
    """Address, port, and how messages name them."""
    address, port = target["address"].lower(), int(target.get("port") or 22)  # as in ssh, whose known hosts have no case
    return address, port, f"{role}{address}" + (f":{port}" if port != 22 else "")


def _user(target: Mapping[str, Any]) -> str:
    return target.get("user") or getpass.getuser()


def _reason(error: OSError | asyncssh.ChannelOpenError) -> str:
    if isinstance(error, asyncssh.ChannelOpenError):
        if error.code == asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED:
            return "the bastion does not permit connections to it: see AllowTcpForwarding and PermitOpen in its sshd_config"
        return f"the bastion cannot reach it: {error.reason}"
    if isinstance(error, socket.gaierror) or not error.errno:
        return error.strerror or str(error)
    return os.strerror(error.errno)  # asyncio puts "Connect call failed" in its place


class _Watch(asyncssh.SSHClient):
    """What happens during a login. It hands out the keys one by one, and rejects a host key that does not match.

    `reason`: why the host key was rejected. `offered`: how many keys were. `notice`: the last text that the server showed after
    that, such as PAM's about an expired account. `further`: what it requires after it has accepted a key."""

    def __init__(self, known_hosts: Trusted, where: str, keys: Sequence[asyncssh.SSHKeyPair]):
        self._known_hosts = known_hosts
        self._where = where
        self._keys = list(keys)
        self._is_exhausted = False
        self.reason = ""
        self.offered = 0
        self.notice = ""
        self.further = ""

    def public_key_auth_requested(self) -> Sequence[asyncssh.SSHKeyPair] | None:
        if not self._keys:
            self._is_exhausted = True
            return None
        self.offered += 1
        return [self._keys.pop(0)]

    def auth_banner_received(self, msg: str, lang: str) -> None:
        if self.offered and msg.strip():
            self.notice = msg.strip()

    def kbdint_auth_requested(self) -> None:
        self._may_be_further("an answer (keyboard-interactive)")

    def password_auth_requested(self) -> None:
        self._may_be_further("a password")

    def _may_be_further(self, method: str) -> None:
        """Another method is tried although the last key was not refused: it was accepted, and is not enough."""
        if self.offered and not self._is_exhausted:
            self.further = self.further or method

    def validate_host_public_key(self, host: str, addr: str, port: int, key: asyncssh.SSHKey) -> bool:
        presented = f"{key.get_algorithm()} {key.get_fingerprint()}"
        if any(self._known_hosts[:2]):
            self.reason = (
                f"{self._where} presented another host key than the known one: {presented}. "
                "Was it re-imaged, or is this a man in the middle?"
            )
        else:
            self.reason = (
                f"{self._where} is not in the known hosts file; `make known-hosts` collects keys for review. "
                f"It presented {presented}"
            )
        return False


class _SshSession:
    def __init__(self, login: asyncssh.SSHClientConnection, *, sudo: bool, start_s: float):
        self._login = login
        self._start_s = start_s
        self.sudo = sudo

    async def start(self, argv: Sequence[str]) -> _SshProcess:
        try:
            async with asyncio.timeout(self._start_s):
                try:
                    return await self._process(argv)
                except asyncssh.ChannelOpenError:  # with `MaxSessions 1` the previous command's session may still count
                    await asyncio.sleep(_SESSION_ENDS_S)
                    return await self._process(argv)
        except TimeoutError:
            raise TransportError("unreachable", f"the host did not start a command within {self._start_s:.0f} s") from None
        except asyncssh.Error as error:
            raise TransportError("unreachable", f"the host refused to start a command: {error.reason}") from None

    async def _process(self, argv: Sequence[str]) -> _SshProcess:
        return _SshProcess(self._login, await self._login.create_process(shlex.join(argv), encoding=None))


class _SshProcess:
    def __init__(self, login: asyncssh.SSHClientConnection, process: asyncssh.SSHClientProcess[bytes]):
        self._login = login
        self._process = process
        self.stdin = _Writer(process.stdin)
        self.stdout, self.stderr = _Reader(process.stdout), _Reader(process.stderr)

    async def wait(self) -> int:
        await self._process.wait_closed()
        if ended_by := self._process.exit_signal:
            return -int(getattr(signal, f"SIG{ended_by[0]}", signal.SIGTERM))
        status = self._process.exit_status
        return LOST if status is None or status < 0 else status

    def interrupt(self) -> None:
        with contextlib.suppress(OSError):  # it has ended meanwhile
            self._process.terminate()
        self.stdin.close()

    async def stop(self) -> None:
        self.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GRACE_S):
                await self._process.wait_closed()
        self._login.abort()


class _Reader:
    """A stream of a connection. When that breaks, the stream ends, and the missing exit status shows why."""

    def __init__(self, stream: asyncssh.SSHReader[bytes]):
        self._stream = stream

    async def read(self, n: int) -> bytes:
        try:
            return await self._stream.read(n)
        except (asyncssh.Error, OSError):
            return b""


class _Writer:
    def __init__(self, stream: asyncssh.SSHWriter[bytes]):
        self._stream = stream

    def write(self, data: bytes, /) -> None:
        self._stream.write(data)

    async def drain(self) -> None:
        try:
            await self._stream.drain()
        except asyncssh.Error as error:
            raise ConnectionResetError(error.reason) from None

    def close(self) -> None:
        """Ends the stream, not the command: its output is still being read."""
        if not self._stream.is_closing():
            with contextlib.suppress(OSError):
                self._stream.write_eof()


async def _close(login: asyncssh.SSHClientConnection) -> None:
    login.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_GRACE_S):
            await login.wait_closed()
    login.abort()
