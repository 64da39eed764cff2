"""An SSH server on loopback that runs commands as local processes and serves a directory by SFTP."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any

import asyncssh

USER, PASSWORD = "ops", "correct-horse-battery"
SHELL_S = 30


class SshServer:
    """`logins`: connections that proved who they are. Files lie where they lie on this machine."""

    def __init__(self) -> None:
        self.host_key = asyncssh.generate_private_key("ssh-ed25519")
        self.client_key = asyncssh.generate_private_key("ecdsa-sha2-nistp256")
        self.logins = 0
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._acceptor = self._run(self._listen())
        self.port: int = self._acceptor.get_port()

    def stop(self) -> None:
        self._run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)

    @property
    def public_host_key(self) -> str:
        return self.host_key.export_public_key().decode().strip()

    @property
    def private_client_key(self) -> str:
        return self.client_key.export_private_key().decode()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(SHELL_S)

    async def _listen(self) -> asyncssh.SSHAcceptor:
        return await asyncssh.listen(
            "127.0.0.1",
            0,
            server_host_keys=[self.host_key],
            server_factory=lambda: _Login(self),
            process_factory=_run_command,
            sftp_factory=True,
            encoding=None,
        )

    async def _close(self) -> None:
        self._acceptor.close()
        await self._acceptor.wait_closed()


class _Login(asyncssh.SSHServer):
    def __init__(self, server: SshServer) -> None:
        self._server = server

    def begin_auth(self, username: str) -> bool:
        return True

    def password_auth_supported(self) -> bool:
        return True

    def validate_password(self, username: str, password: str) -> bool:
        return (username, password) == (USER, PASSWORD)

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: asyncssh.SSHKey) -> bool:
        return username == USER and key == self._server.client_key.convert_to_public()

    def auth_completed(self) -> None:
        self._server.logins += 1

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return True  # it is a proxy too


async def _run_command(process: asyncssh.SSHServerProcess[bytes]) -> None:
    environment = {**dict(process.env), "PATH": "/usr/bin:/bin"}
    local = await asyncio.create_subprocess_exec(
        "/bin/sh",
        "-c",
        process.command or "",
        env=environment,
        cwd="/",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    stdout, stderr = await local.communicate(await process.stdin.read())
    process.stdout.write(stdout)
    process.stderr.write(stderr)
    process.exit(local.returncode or 0)
