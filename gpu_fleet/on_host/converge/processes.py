"""Processes of other programs, from /proc."""

from __future__ import annotations

import glob
import os
import re
import signal
from typing import Iterator

from .programs import read_or_empty


def pids() -> Iterator[str]:
    for path in glob.glob("/proc/[0-9]*"):
        yield path[len("/proc/") :]


def shown(pid: str) -> str:
    """For people. Only the name: the arguments of another program may contain secrets."""
    name = read_or_empty(f"/proc/{pid}/comm").replace("\n", "")
    return f"process {pid} ({re.sub('[^ -~]', '?', name)})"  # any user can give a program a name with control characters


def environment_of(pid: str) -> list[str]:
    """NAME=value; of a process that has ended: nothing."""
    return read_or_empty(f"/proc/{pid}/environ").split("\0")


def is_of_prefix(pid: str, prefix: str) -> bool:
    """Did we start it?"""
    return f"GPU_FLEET_PREFIX={prefix}" in environment_of(pid)


def has_user(pid: str, number: int) -> bool:
    return f"\nUid:\t{number}\t" in read_or_empty(f"/proc/{pid}/status")


def send(pid: str, number: signal.Signals) -> bool:
    """Returns whether there was such a process."""
    try:
        os.kill(int(pid), number)
    except OSError:
        return False
    return True
