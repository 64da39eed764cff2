"""TCP ports on loopback for servers of the lab and of the tests."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
from pathlib import Path
from typing import IO

# Below the range that the kernel takes outgoing connections from: there, a port is taken again before its server starts.
_FIRST, _BLOCK, _BLOCKS = 15_000, 50, 340
_locks: list[IO[str]] = []  # held until this process ends, and not inherited
_left: list[int] = []


def free_ports(count: int) -> list[int]:
    """Nobody else's until this process ends: a server that is stopped for a while, as tests do, finds its port free again."""
    found: list[int] = []
    while len(found) < count:
        if not _left:
            _left.extend(_claim_block())
        port = _left.pop()
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.append(port)
    return found


def _claim_block() -> range:
    # Ports are those of the whole machine, so processes with different TMPDIRs must see the same locks.
    directory = Path("/tmp") / f"gpu-fleet-ports-{os.getuid()}"  # noqa: S108 - the directory is 0700
    directory.mkdir(mode=0o700, exist_ok=True)
    for number in random.sample(range(_BLOCKS), _BLOCKS):
        lock = (directory / str(number)).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        _locks.append(lock)
        return range(_FIRST + number * _BLOCK, _FIRST + (number + 1) * _BLOCK)
    raise OSError(f"all {_BLOCKS} blocks of ports in {directory} are taken")
