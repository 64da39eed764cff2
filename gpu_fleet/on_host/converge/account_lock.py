"""Who has locked a file of accounts, and the fix. useradd and its like only say `cannot lock /etc/passwd; try again later`.

They lock /etc/.pwd.lock, for which they wait 15 seconds (lckpwdf(3)), and FILE.lock, which holds their PID. They remove
the latter where no process has that number any more, and leave one that is empty, as a power failure makes it. Source: shadow
4.13, lib/commonio.c, tried 2026-11-28.
"""

from __future__ import annotations

import os
import re

from .processes import shown
from .programs import read_or_empty

_LOCKED = re.compile(r"cannot lock (/\S+); try again later")
_OF_ALL = "/etc/.pwd.lock"


def explained(said: str) -> str:
    """Empty where the tool said something else."""
    match = _LOCKED.search(said)
    if not match:
        return ""
    file = match.group(1)
    lock = f"{file}.lock"
    left = f"remove what it left (rm {lock}) and apply again"
    if os.path.lexists(lock):
        pid = read_or_empty(lock).strip("\0\n ")
        if not pid.isdigit() or not os.path.isdir(f"/proc/{pid}"):
            return f"{file} was locked by a program that was cut off: {left}"
        return (
            f"{file} is locked by {shown(pid)}: apply again once it has ended. If it has nothing to do with accounts, it has the "
            f"number of a program that was cut off: {left}"
        )
    return f"{file} is locked by {_holder(_OF_ALL) or 'another program'}: apply again once it has ended"


def _holder(path: str) -> str:
    """The process with a lock of fcntl(2) on it. Source: proc_locks(5)."""
    try:
        inode = os.stat(path).st_ino
    except OSError:
        return ""
    found = re.search(rf"^\d+: POSIX .* (\d+) [0-9a-f]+:[0-9a-f]+:{inode} ", read_or_empty("/proc/locks"), re.MULTILINE)
    return shown(found.group(1)) if found else ""
