"""Ways to run a command on a host. Knows no converge program, no Pulumi."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

# A local process gets these alone: the engine's environment holds passphrases and tokens, and what a process starts inherits it.
_ENVIRONMENT = ("PATH", "HOME", "USER", "LOGNAME", "TMPDIR")
_LONGEST_LINE = 4 << 20  # bytes; one JSON line may carry the diff of a large file
_GRACE_S = 3  # from closing standard input, which asks the work to stop, to ending it


@dataclass
class TransportError(Exception):
    """The host could not be reached or logged in on. `code` is a cause, one of host.CAUSES."""

    code: str
    message: str

    def __str__(self) -> str:
        return self.message


class Reader(Protocol):
    async def readline(self) -> bytes: ...
    async def read(self, n: int) -> bytes: ...


class Writer(Protocol):
    def write(self, data: bytes, /) -> None: ...
    async def drain(self) -> None: ...
    def close(self) -> None: ...


class Running(Protocol):
    """A command on a host. Closing its standard input asks it to stop; `stop` makes sure that it does."""

    @property
    def stdin(self) -> Writer: ...
    @property
    def stdout(self) -> Reader: ...
    @property
    def stderr(self) -> Reader: ...

    async def wait(self) -> int: ...
    async def stop(self) -> None: ...


class Session(Protocol):
    """A login on one host; several commands may run in it, one after the other."""

    @property
    def sudo(self) -> bool:
        """Whether commands have to become root by sudo."""

    async def start(self, argv: Sequence[str]) -> Running: ...


class Transport(Protocol):
    def session(self, connection: dict[str, Any]) -> contextlib.AbstractAsyncContextManager[Session]:
        """Opens a session when there is room for one more. Raises TransportError."""


class LocalTransport:
    """This machine. `parallel` bounds how many hosts are worked on at once: each costs processes here."""

    sudo = False

    def __init__(self, parallel: int = 16):
        self._room = asyncio.Semaphore(parallel)

    @contextlib.asynccontextmanager
    async def session(self, connection: dict[str, Any]) -> AsyncIterator[LocalTransport]:
        async with self._room:
            yield self

    async def start(self, argv: Sequence[str]) -> _LocalProcess:
        pipe = asyncio.subprocess.PIPE
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=pipe, stdout=pipe, stderr=pipe, cwd="/", env=environment, start_new_session=True, limit=_LONGEST_LINE
        )
        return _LocalProcess(process)


class _LocalProcess:
    def __init__(self, process: asyncio.subprocess.Process):
        assert process.stdin and process.stdout and process.stderr, "started with three pipes"
        self._process = process
        self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr

    async def wait(self) -> int:
        return await self._process.wait()

    async def stop(self) -> None:
        self.stdin.close()
        for ending in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_GRACE_S):
                    await self._process.wait()
                    return
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, ending)
        await self._process.wait()
