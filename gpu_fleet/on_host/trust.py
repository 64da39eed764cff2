"""What root alone can have started or placed: any user gives processes and files any name."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Collection

_GROUPS = (0, 50)  # Debian's /usr/local is writable for its group staff, to which an administrator adds people


def is_process_of_root(directory: str) -> bool:
    """Of /proc/PID. Its owner is the effective user: root, for sudo that waits for a password, under a name of the user's."""
    try:
        with open(f"{directory}/status", encoding="utf-8", errors="replace") as file:  # noqa: PTH123  of hundreds of processes
            users = next((line.split()[1:] for line in file if line.startswith("Uid:")), [])
    except FileNotFoundError:
        users = [str(_owner(directory))]  # of a copy of /proc
    except OSError:
        return False
    if set(users) != {"0"}:
        return False
    try:  # sudo is root in all respects by then
        return not os.stat(f"{directory}/exe").st_mode & stat.S_ISUID  # noqa: PTH116
    except OSError:
        return True


def is_placed_by(owners: Collection[int], path: Path) -> bool:
    """Can nobody but these users put a file, or a link to one, here?"""
    try:
        found = (path, path.resolve())
        return all(_is_closed(each, owners) for one in found for each in (one, *one.parents))
    except (OSError, RuntimeError):
        return False


def _is_closed(path: Path, owners: Collection[int]) -> bool:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return True  # who could create it is asked of its directory
    if status.st_uid not in owners:
        return False
    open_to = stat.S_IWOTH if status.st_gid in _GROUPS else stat.S_IWOTH | stat.S_IWGRP
    return stat.S_ISLNK(status.st_mode) or not status.st_mode & open_to


def _owner(path: str) -> int:
    try:
        return os.stat(path).st_uid  # noqa: PTH116
    except OSError:
        return -1
