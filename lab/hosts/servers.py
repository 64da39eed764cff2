"""Small TCP servers of a site, as a program of its own. It prints a line once it listens.

stall ADDRESS PORT                   takes connections and never says anything
relay ADDRESS PORT TO_ADDRESS TO_PORT  hands connections on: a server on this machine's loopback, as the hosts can reach it
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable


async def stall(address: str, port: str) -> None:
    async def keep(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(4096):
            pass
        writer.close()

    await _serve(keep, address, port)


async def relay(address: str, port: str, to_address: str, to_port: str) -> None:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there_reader, there_writer = await asyncio.open_connection(to_address, int(to_port))
        except OSError:
            writer.transport.abort()
            return
        await asyncio.gather(_pump(reader, there_writer), _pump(there_reader, writer))

    await _serve(connect, address, port)


async def _serve(talk: Callable[..., Awaitable[None]], address: str, port: str) -> None:
    async with await asyncio.start_server(talk, address, int(port)) as server:
        print("listening", flush=True)
        await server.serve_forever()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
        return
    writer.transport.abort()


if __name__ == "__main__":
    asyncio.run({"stall": stall, "relay": relay}[sys.argv[1]](*sys.argv[2:]))
