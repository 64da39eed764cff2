"""What an error of the system means on this host: its code, where the limit is, and the command that shows or removes it. The
host is asked once something has failed."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
from typing import Iterator, NamedTuple, Sequence

from .disk import opened

GET_FLAGS = 0x80086601  # of <linux/fs.h>, on 64-bit machines
IMMUTABLE = 0x10
APPEND_ONLY = 0x20

FREE_SOME = "free some space and apply again"
_FEW_INODES = 16  # some are free again once what failed was deleted
_FEW_BYTES = 1 << 20
_FULL = (errno.ENOSPC, errno.EDQUOT)
_DENIED = (errno.EACCES, errno.EROFS, errno.EPERM)
_BROKEN = (errno.EIO, errno.EUCLEAN)
_LIMITS = (errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EFBIG)
# Of a lock, EAGAIN has the same text.
_FORK = re.compile(r"(?i)fork.*Resource temporarily unavailable|^[\w./-]+: Resource temporarily unavailable$|can(?:no|')t fork")
_NO_NUMBER = re.compile(r"no more available ([UG]ID)s")  # of shadow 4.13
_PATH = re.compile(r"(?<![\w.])\.?(/[^\s'\":;,()\[\]]*)")


class Cause(NamedTuple):
    """`fix`: where the limit is and what to do, in words; may be empty."""

    code: str
    fix: str = ""


def of_error(error: OSError, what: str = "") -> Cause | None:
    """None: it is none of those that a host's administrator can do something about. `what`: was tried; its paths count where the
    error has none, as that of a write."""
    paths = [os.fsdecode(path) for path in (error.filename, error.filename2) if isinstance(path, (str, bytes))]
    is_fork = error.errno == errno.EAGAIN and not paths
    return _of(error.errno or 0, paths or _paths_in(what), is_fork=is_fork)


def of_line(line: str) -> Cause | None:
    """Of a line that a program printed."""
    paths = _paths_in(line)
    if _FORK.search(line):
        return _of(errno.EAGAIN, paths, is_fork=True)
    used_up = _NO_NUMBER.search(line)
    if used_up:
        kind = used_up.group(1)
        return Cause(
            "limit",
            f"every number for system accounts is taken (SYS_{kind}_MIN to SYS_{kind}_MAX in /etc/login.defs): remove accounts "
            "that nothing needs (getent passwd, getent group) or widen the range, and apply again",
        )
    for number in (*_FULL, *_DENIED, *_BROKEN, *_LIMITS):
        if os.strerror(number) in line:
            return _of(number, paths)
    return None


def _paths_in(text: str) -> list[str]:
    return [found.rstrip(".") for found in _PATH.findall(text)]


def _of(number: int, paths: Sequence[str], *, is_fork: bool = False) -> Cause | None:
    places = list(dict.fromkeys(place for path in paths for place in existing(path)))
    if number in _FULL:
        fix = _of_quota(places) if number == errno.EDQUOT else of_full(places)
        return Cause("disk-full", fix or FREE_SOME)
    if number in _DENIED:
        return Cause("no-write", _of_denied(places, paths))
    if number in _BROKEN:
        return Cause("no-write", "the disk or its file system is damaged: `dmesg` says more")
    if is_fork or number in _LIMITS:
        return Cause("limit", _of_limit(number))
    return None


def existing(path: str) -> Iterator[str]:
    """The path itself, or the nearest directory of it that exists."""
    while path not in ("", "/") and not os.path.lexists(path):
        path = os.path.dirname(path)
    if path:
        yield path


def of_full(places: Sequence[str]) -> str:
    """Is it space or inodes? The first of them that is full; empty where none is."""
    for place in places:
        status = _file_system(place)
        if status and status.f_files and status.f_favail < _FEW_INODES and status.f_bavail * status.f_frsize > _FEW_BYTES:
            return (
                f"there is space, but no inode is left on the file system of {place} (df -i {place}): delete files there "
                f"(du --inodes -x {_mount(place)} | sort -n | tail shows where they are) and apply again"
            )
    for place in places:
        status = _file_system(place)
        if status and status.f_bavail * status.f_frsize <= _FEW_BYTES:
            return f"the file system of {place} is full (df -h {place}); free some space and apply again"
    return ""


def _of_quota(places: Sequence[str]) -> str:
    where = f" on {_mount(places[0])}" if places else ""
    shown = "`quota -vs`, on XFS `xfs_quota -xc report`"
    return f"the quota of this user, group or project{where} is used up, whatever df says: {shown}"


def of_read_only(place: str) -> Cause | None:
    status = _file_system(place)
    if not status or not status.f_flag & os.ST_RDONLY:
        return None
    mount = _mount(place)
    return Cause(
        "no-write",
        f"{mount} is mounted read-only (findmnt {mount}); if the kernel made it so after an error, `dmesg` says why. Make it "
        "writable and apply again",
    )


def of_denied(path: str) -> str:
    return _of_denied([*existing(path)], [path])


def _of_denied(places: Sequence[str], paths: Sequence[str]) -> str:
    for place in places:
        cause = of_read_only(place)
        if cause:
            return cause.fix
    for place in places:
        for each in (place, os.path.dirname(place)):
            flags = flags_of(each)
            if flags & (IMMUTABLE | APPEND_ONLY):
                letter = "i" if flags & IMMUTABLE else "a"
                return f"{each} is locked against changes (chattr +{letter}); unlock it (chattr -{letter} {each}) and apply again"
    for place in places:
        status = _file_system(place)
        if status and status.f_flag & os.ST_NOEXEC and any(path.startswith(place) for path in paths):
            mount = _mount(place)
            return f"{mount} is mounted noexec, so that no program in it starts: mount -o remount,exec {mount}"
    return _of_policies() if os.geteuid() == 0 else "run as root (sudo)"


def _of_policies() -> str:
    """What denies things to root."""
    if os.path.exists("/run/fapolicyd"):
        return "fapolicyd is active and may deny it: `ausearch -m fanotify -ts recent` shows what it denied"
    try:
        with open("/sys/fs/selinux/enforce", encoding="ascii") as file:
            if file.read(1) == "1":
                return "SELinux is enforcing and may deny it: `ausearch -m avc -ts recent` shows what it denied"
    except OSError:
        pass
    if os.path.exists("/sys/kernel/security/apparmor/profiles"):
        return "AppArmor may deny it: `journalctl -k --grep apparmor=.DENIED` shows what"
    return ""


def _of_limit(number: int) -> str:
    if number in (errno.EMFILE, errno.ENFILE):
        limits = "`ulimit -n` of this login, or fs.file-max of the host (sysctl fs.file-nr)"
        return f"too many files are open: {limits}; raise it and apply again"
    if number == errno.EFBIG:
        return "this login may write no file of that size (ulimit -f; pam_limits): raise it and apply again"
    if number == errno.ENOMEM:
        return "the host, or the slice of this login, has no memory left (free -m); free some and apply again"
    return (
        "no process can be started: the limit of this login (ulimit -u), of its slice (systemctl status user-$(id -u).slice: "
        "Tasks) or of the host (sysctl kernel.pid_max) is reached; end what has so many and apply again"
    )


def _file_system(path: str) -> os.statvfs_result | None:
    try:
        return os.statvfs(path)
    except OSError:
        return None


def _mount(path: str) -> str:
    """Where its file system is mounted. A bind mount of the same device is one too, which os.path.ismount does not see."""
    path = os.path.realpath(path)
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            points = {line.split(" ")[4].replace("\\040", " ") for line in file}
    except OSError:
        points = {"/"}
    while path != "/" and path not in points:
        path = os.path.dirname(path)
    return path


def flags_of(path: str) -> int:
    """0 on file systems that know none."""
    try:
        with opened(path) as file:
            buffer = bytearray(8)
            fcntl.ioctl(file, GET_FLAGS, buffer)
            return int(struct.unpack("L", buffer)[0])
    except OSError:
        return 0
