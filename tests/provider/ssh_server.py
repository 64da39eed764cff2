"""An SSH server on loopback whose commands are local processes: one real login per connection, counted."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import asyncssh


class SshServers:
    """Servers in a thread of their own, so that tests can stay plain functions."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.client_key = asyncssh.generate_private_key("ssh-ed25519")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._closers: list[Callable[[], Any]] = []

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(120)

    def ssh(self, **options: Any) -> SshServer:
        """A server that lets `client_key` in. `path`: directory searched first for programs. `jump`: forwards connections."""
        server = SshServer(self.client_key, **options)
        self.run(server.start())
        self._closers.append(lambda: self.run(server.stop()))
        return server

    def silent(self, *, accepts: bool) -> int:
        """A port that never says anything; one that does not accept leaves a dial without an answer."""
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(16 if accepts else 0)
        fillers = []
        if not accepts:  # once the queue of a listener that never accepts is full, the kernel drops what asks to join it
            for _ in range(4):
                filler = socket.socket()
                filler.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    filler.connect(listener.getsockname())
                fillers.append(filler)
        self._closers.append(lambda: [one.close() for one in (*fillers, listener)])
        return listener.getsockname()[1]

    def key_file(self) -> str:
        path = self.directory / "id"
        self.client_key.write_private_key(path)
        path.chmod(0o600)
        return str(path)

    def known_hosts(self, *servers: SshServer) -> str:
        path = self.directory / f"known_hosts_{len(list(self.directory.glob('known_hosts_*')))}"
        path.write_text("".join(f"[127.0.0.1]:{server.port} {server.public_key}\n" for server in servers))
        return str(path)

    def close(self) -> None:
        for close in reversed(self._closers):
            close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class SshServer:
    def __init__(self, client_key: asyncssh.SSHKey, *, path: Path | None = None, jump: bool = False):
        self._client_key = client_key
        self._host_key = asyncssh.generate_private_key("ssh-ed25519")
        self._path = path
        self._jump = jump
        self._acceptor: asyncssh.SSHAcceptor | None = None
        self.logins: list[asyncssh.SSHServerConnection] = []  # connections that got as far as SSH
        self._running: set[asyncio.Task[Any]] = set()
        self.refusals = 0  # sessions that will be refused yet
        self.breaks = False  # the connection ends when it is to forward
        self.forced = ""  # what runs instead of any command
        self.commands: list[str] = []
        self.users: list[str] = []
        self.login_s = 0.0  # that a login takes, one at a time
        self._one_login = asyncio.Lock()

    @property
    def port(self) -> int:
        return self._acceptor.get_port()

    @property
    def public_key(self) -> str:
        return self._host_key.export_public_key().decode().strip()

    async def start(self) -> None:
        trusted = asyncssh.import_authorized_keys(self._client_key.export_public_key().decode())
        self._acceptor = await asyncssh.listen(
            "127.0.0.1",
            0,
            server_factory=lambda: _Login(self),
            server_host_keys=[self._host_key],
            authorized_client_keys=trusted,
            encoding=None,
        )

    async def stop(self) -> None:
        self._acceptor.close()
        await self._acceptor.wait_closed()
        await asyncio.gather(*self._running)

    async def _run(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        self.commands.append(process.command)
        self._running.add(asyncio.current_task())
        path = f"{self._path}:{os.environ['PATH']}" if self._path else os.environ["PATH"]
        child = await asyncio.create_subprocess_exec(
            *("sh", "-c", self.forced or process.command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": path, "HOME": "/nonexistent", "SSH_ORIGINAL_COMMAND": process.command},
            start_new_session=True,  # as sshd does
        )
        feeding = asyncio.create_task(_feed(process, child))
        await asyncio.gather(_pump(child.stdout, process.stdout), _pump(child.stderr, process.stderr))
        process.exit(await child.wait())
        feeding.cancel()

    async def drop(self) -> None:
        """Every connection breaks, as when a host loses its network."""
        for login in self.logins:
            login.abort()


async def _feed(process: asyncssh.SSHServerProcess[bytes], child: asyncio.subprocess.Process) -> None:
    """Its standard input, and what signals the client sends meanwhile, which sshd passes on to the whole group."""
    while True:
        try:
            return await _pump(process.stdin, child.stdin)
        except asyncssh.SignalReceived:
            os.killpg(child.pid, signal.SIGTERM)


async def _pump(source: Any, sink: Any) -> None:
    """From one stream to the other until either ends; the child's standard input ends with its connection."""
    with contextlib.suppress(asyncssh.Error, OSError):
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
    if isinstance(sink, asyncio.StreamWriter):
        sink.close()


class _Login(asyncssh.SSHServer):
    def __init__(self, server: SshServer):
        self._server = server

    def connection_made(self, conn: asyncssh.SSHServerConnection) -> None:
        self._server.logins.append(conn)

    async def begin_auth(self, username: str) -> bool:
        self._server.users.append(username)
        async with self._server._one_login:
            await asyncio.sleep(self._server.login_s)
        return True

    def session_requested(self) -> asyncssh.SSHServerProcess[bytes]:
        if self._server.refusals:
            self._server.refusals -= 1
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "open failed")
        return asyncssh.SSHServerProcess(self._server._run, None, 0, False)

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        if not self._server._jump:  # as sshd does with `AllowTcpForwarding no`
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_ADMINISTRATIVELY_PROHIBITED, "open failed")
        if self._server.breaks:
            self._server.logins[-1].abort()
            raise asyncssh.ChannelOpenError(asyncssh.OPEN_CONNECT_FAILED, "open failed")
        return True
