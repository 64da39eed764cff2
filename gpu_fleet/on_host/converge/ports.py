"""Who listens on a port, from the kernel's own tables, since not every host has ss."""

from __future__ import annotations

import contextlib
import glob
import os
import re
from typing import NamedTuple

from .processes import shown
from .programs import read_or_empty


class Holder(NamedTuple):
    """`pid`: empty where it is not known."""

    name: str
    pid: str


def inodes(port: int) -> list[str]:
    """Of the sockets that listen on it."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in read_or_empty(table).split("\n")[1:]:
            # Columns: local address, remote address, state (0A is LISTEN), ..., inode of the socket.
            fields = line.split()
            if len(fields) > 9 and fields[3] == "0A" and fields[1].endswith(f":{port:04X}"):
                found.append(fields[9])
    return found


def holder(of: list[str]) -> Holder:
    for inode in of:
        for path in glob.iglob("/proc/[0-9]*/fd/*"):
            with contextlib.suppress(OSError):
                if os.readlink(path) == f"socket:[{inode}]":
                    pid = path.split("/")[2]
                    return Holder(shown(pid), pid)
    return Holder("a process of another user", "")


def is_process_of(pid: str, unit: str) -> bool:
    """Under systemd or supervisord. Users may have units of that name too, below their own manager's."""
    if re.search(rf":(?:/[^/\n]*\.slice)*/{re.escape(unit)}\.service(?:/|$)", read_or_empty(f"/proc/{pid}/cgroup"), re.MULTILINE):
        return True
    return f"SUPERVISOR_PROCESS_NAME={unit}" in read_or_empty(f"/proc/{pid}/environ").split("\0")


def port_of(address: str) -> int:
    """Of HOST:PORT or http://HOST:PORT/PATH; 0: none."""
    where = address[len("http://") :] if address.startswith("http://") else address
    port = where.partition("/")[0].rpartition(":")[2]
    return int(port) if port.isascii() and port.isdigit() and ":" in where else 0
