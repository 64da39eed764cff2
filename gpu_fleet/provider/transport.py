"""How a command is run on a host. Knows neither the converge program nor Pulumi."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from gpu_fleet.safetext.terminal import printable_line

# A local process gets only these: the engine's environment holds passphrases and tokens, and child processes inherit it.
_ENVIRONMENT = ("PATH", "HOME", "USER", "LOGNAME", "TMPDIR")
_BUFFER = 256 << 10  # bytes of a stream that wait to be read; the process waits while twice as many do
_GRACE_S = 3  # from closing standard input, which asks the work to stop, to ending it

LOST: Final = -1000  # exit status of a command whose connection broke


@dataclass
class TransportError(Exception):
    """The host could not be reached, or refused the login. `code`: one of host.CAUSES."""

    code: str
    message: str

    def __post_init__(self) -> None:
        self.message = printable_line(self.message)  # servers choose some of it, before any login

    def __str__(self) -> str:
        return self.message


class Reader(Protocol):
    async def read(self, n: int) -> bytes: ...


class Writer(Protocol):
    def write(self, data: bytes, /) -> None: ...
    async def drain(self) -> None: ...
    def close(self) -> None: ...


class Running(Protocol):
    """A running command on a host. Closing its standard input asks it to stop; `stop` makes sure that it ends."""

    @property
    def stdin(self) -> Writer: ...
    @property
    def stdout(self) -> Reader: ...
    @property
    def stderr(self) -> Reader: ...

    async def wait(self) -> int:
        """The exit status, the negative number of the signal that ended the command, or LOST."""

    def interrupt(self) -> None:
        """Asks a command that waits for an answer to end: with SIGTERM first, since to some programs the end of standard input is
        an answer, too."""

    async def stop(self) -> None: ...


class Session(Protocol):
    """A login on one host. Several commands may run in it, one after another."""

    @property
    def sudo(self) -> bool:
        """Whether commands need sudo."""

    async def start(self, argv: Sequence[str]) -> Running: ...


class Transport(Protocol):
    def session(self, connection: dict[str, Any]) -> contextlib.AbstractAsyncContextManager[Session]:
        """Opens a session once the limit on parallel sessions permits. Raises TransportError."""


class LocalTransport:
    """This machine. `parallel` limits how many local hosts are changed at once: each needs processes here."""

    sudo = False

    def __init__(self, parallel: int = 16):
        self._slots = asyncio.Semaphore(parallel)

    @contextlib.asynccontextmanager
    async def session(self, connection: dict[str, Any]) -> AsyncIterator[LocalTransport]:
        async with self._slots:
            yield self

    async def start(self, argv: Sequence[str]) -> _LocalProcess:
        pipe = asyncio.subprocess.PIPE
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=pipe, stdout=pipe, stderr=pipe, cwd="/", env=environment, start_new_session=True, limit=_BUFFER
        )
        return _LocalProcess(process)


class _LocalProcess:
    def __init__(self, process: asyncio.subprocess.Process):
        assert process.stdin and process.stdout and process.stderr, "started with three pipes"
        self._process = process
        self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr

    async def wait(self) -> int:
        return await self._process.wait()

    def interrupt(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        self.stdin.close()

    async def stop(self) -> None:
        self.stdin.close()
        for ending in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GRACE_S):
                    await self._process.wait()
                    return
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, ending)
        with contextlib.suppress(TimeoutError):  # not even SIGKILL ends one that waits for a disk
            async with asyncio.timeout(_GRACE_S):
                await self._process.wait()
