"""Processes of other programs, from /proc."""

from __future__ import annotations

import glob
import os
import signal
from typing import Iterator

from .programs import read_or_empty


def pids() -> Iterator[str]:
    for path in glob.glob("/proc/[0-9]*"):
        yield path[len("/proc/") :]


def environment_of(pid: str) -> list[str]:
    """NAME=value; of a process that has ended: nothing."""
    return read_or_empty(f"/proc/{pid}/environ").split("\0")


def is_of_prefix(pid: str, prefix: str) -> bool:
    """Did we start it?"""
    return f"GPU_FLEET_PREFIX={prefix}" in environment_of(pid)


def ancestors() -> set[str]:
    """Those of this process, and itself."""
    found, pid = set(), str(os.getpid())
    while pid.isdigit() and pid != "0" and pid not in found:
        found.add(pid)
        # PID (NAME) STATE PARENT; a name may have any character.
        fields = read_or_empty(f"/proc/{pid}/stat").rpartition(")")[2].split()
        pid = fields[1] if len(fields) > 1 else ""
    return found


def has_user(pid: str, number: int) -> bool:
    return f"\nUid:\t{number}\t" in read_or_empty(f"/proc/{pid}/status")


def send(pid: str, number: signal.Signals) -> bool:
    """Returns whether there was such a process."""
    try:
        os.kill(int(pid), number)
    except OSError:
        return False
    return True
