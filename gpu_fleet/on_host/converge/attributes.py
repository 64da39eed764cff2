"""What a file can have besides content, mode and owner: capabilities, which give a program some of root's privileges, an access
control list, by which others read a secret, and attributes that prevent changing or replacing it. Asked of the kernel: hardly any
file has them, and getcap, getfacl and lsattr are three more programs."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import struct
from typing import Iterable

from .causes import APPEND_ONLY, IMMUTABLE, flags_of
from .disk import opened
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
        with opened(host.at(each)) as file:
            fcntl.ioctl(file, _SET_FLAGS, struct.pack("L", flags & ~(IMMUTABLE | APPEND_ONLY)))


def own_directory(path: str, uid: int, gid: int, whole: bool) -> None:
    """`whole`: with everything in it, while its former owner, a service's account, may still change it. `path` may be an
    administrator's link."""
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        own(top, uid, gid)
        for _, directories, names, directory in os.fwalk(".", dir_fd=top) if whole else ():
            for name in (*directories, *names):
                with contextlib.suppress(FileNotFoundError):
                    _own_entry(name, directory, uid, gid)
    finally:
        os.close(top)


def _own_entry(name: str, directory: int, uid: int, gid: int) -> None:
    mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # links, pipes and sockets
        os.chown(name, uid, gid, dir_fd=directory, follow_symlinks=False)
        return
    try:
        with opened(name, directory) as file:
            own(file, uid, gid)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):  # a link or a socket by now
            raise


def own(file: int, uid: int, gid: int) -> None:
    """Not what has several names: one of them may be that of another user's file."""
    status = os.fstat(file)
    if (status.st_uid, status.st_gid) == (uid, gid) or (stat.S_ISREG(status.st_mode) and status.st_nlink > 1):
        return
    os.fchown(file, uid, gid)
    if status.st_mode & 0o6000:
        os.fchmod(file, stat.S_IMODE(status.st_mode))  # chown clears set-id bits
