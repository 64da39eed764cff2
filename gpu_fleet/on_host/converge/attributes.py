"""What a file can have besides content, mode and owner: capabilities, which give a program some of root's privileges, an access
control list, by which others read a secret, and attributes that prevent changing or replacing it. Asked of the kernel: hardly any
file has them, and getcap, getfacl and lsattr are three more programs."""

from __future__ import annotations

import fcntl
import os
import stat
import struct
from typing import Iterable

from .causes import APPEND_ONLY, IMMUTABLE, flags_of
from .host import Host
from .programs import run

_SET_FLAGS = 0x40086602  # of <linux/fs.h>, on 64-bit machines


def survey(host: Host, paths: Iterable[str]) -> dict[str, str]:
    """What is unusual, by path."""
    if not host.owners:
        return {}
    return {path: unusual for path in paths for unusual in [_unusual(host.at(path))] if unusual}


def _unusual(path: str) -> str:
    try:
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            return ""
        if stat.S_ISREG(mode) and not mode & stat.S_IROTH and _has(path, "system.posix_acl_access"):
            return "has an access control list (see getfacl)"
        if stat.S_ISREG(mode) and _has(path, "security.capability"):
            words = run("getcap", path).stdout.split()
            return f"has unexpected capabilities ({words[-1] if words else 'see getcap'})"
        flags = flags_of(path)
    except OSError:
        return ""
    if flags & (IMMUTABLE | APPEND_ONLY):
        return f"is locked against changes (chattr +{'i' if flags & IMMUTABLE else 'a'})"
    return ""


def _has(path: str, attribute: str) -> bool:
    try:
        return bool(os.getxattr(path, attribute, follow_symlinks=False))
    except OSError:
        return False


def unlock(host: Host, unusual: dict[str, str], paths: Iterable[str]) -> None:
    """Clears the attributes that prevent changes to these."""
    for each in paths:
        if "chattr" not in unusual.get(each, ""):
            continue
        flags = flags_of(host.at(each))
        descriptor = os.open(host.at(each), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            fcntl.ioctl(descriptor, _SET_FLAGS, struct.pack("L", flags & ~(IMMUTABLE | APPEND_ONLY)))
        finally:
            os.close(descriptor)
