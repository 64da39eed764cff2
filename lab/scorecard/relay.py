"""TCP relays between one host and the stores: closed, the host has no connection to that store."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from typing import Any

Address = tuple[str, int]


class Relays:
    """An event loop of its own, in one thread for all hosts."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._open: dict[Address, tuple[asyncio.Server, set[asyncio.StreamWriter]]] = {}

    def open(self, address: Address, to: int) -> None:
        self._run(self._listen(address, to))

    def close(self, address: Address) -> None:
        """Refuses connections and ends the present ones. One that is closed already stays so."""
        self._run(self._end(address))

    def stop(self) -> None:
        for address in list(self._open):
            self.close(address)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=120)

    async def _listen(self, address: Address, to: int) -> None:
        if address in self._open:
            return
        writers: set[asyncio.StreamWriter] = set()

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                other_reader, other_writer = await asyncio.open_connection("127.0.0.1", to)
                writers.update((writer, other_writer))
                await asyncio.gather(_copy(reader, other_writer), _copy(other_reader, writer))
                writers.difference_update((writer, other_writer))
            writer.close()

        self._open[address] = (await asyncio.start_server(relay, *address), writers)

    async def _end(self, address: Address) -> None:
        server, writers = self._open.pop(address, (None, set()))
        if server:
            server.close()
        for writer in writers:
            writer.transport.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while part := await reader.read(65_536):
            writer.write(part)
            await writer.drain()
    writer.close()
