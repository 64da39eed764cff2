"""TCP ports on loopback for servers of the lab and of the tests."""

from __future__ import annotations

import contextlib
import random
import socket


def free_ports(count: int) -> list[int]:
    """Below the range that the kernel takes outgoing connections from: there, one is taken again before its server starts."""
    sockets: dict[int, socket.socket] = {}
    while len(sockets) < count:
        with contextlib.suppress(OSError):
            port = random.randrange(15_000, 32_000)
            sockets[port] = socket.create_server(("127.0.0.1", port))
    for each in sockets.values():
        each.close()
    return list(sockets)
