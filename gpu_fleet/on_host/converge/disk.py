"""Writing so that a power cut leaves either the old or the new, and what was reported as done is on disk."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from typing import Iterator, Union

Content = Union[bytes, str]  # the bytes themselves, or the path of a file that has them


@contextlib.contextmanager
def opened(name: str, directory: int | None = None) -> Iterator[int]:
    """A file or a directory that is no link: whoever may write in its directory may exchange it at any moment."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync(path: str) -> None:
    """A file's content, or a directory's every rename, removal and new name."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        os.sync()
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_tree(path: str) -> None:
    if os.path.isfile(path) and not os.path.islink(path):
        sync(path)
    for directory, _, names in os.walk(path):
        for name in names:
            file = os.path.join(directory, name)
            if not os.path.islink(file):
                sync(file)


class Disk:
    """Remembers what has to be flushed before the run reports its result."""

    def __init__(self) -> None:
        self._unflushed: dict[str, None] = {}

    def will_flush(self, path: str) -> None:
        """This file or directory, or the directory that it was removed from."""
        self._unflushed[path] = None

    def flush_changes(self) -> None:
        paths: dict[str, None] = {}
        for path in self._unflushed:
            while path and not os.path.exists(path):
                path = os.path.dirname(path) if path != os.path.dirname(path) else ""
            paths[path or "/"] = None
        for path in paths:
            sync(path)
        self._unflushed.clear()

    def commit(self, new: str, path: str) -> None:
        """`new` becomes `path` once its content is on disk. A rename may reach the disk before the data does (XFS; ext4 without
        auto_da_alloc), and after a power cut `path` would be an empty file. Source: ext4(5), auto_da_alloc, read 2026-11-22."""
        sync(new)
        os.rename(new, path)
        self.will_flush(os.path.dirname(path))

    def write(self, path: str, content: bytes, mode: int = 0o600) -> None:
        """A record of ours. Unchanged ones are not written again, so a run that changes nothing does not wait for the disk."""
        if not os.path.islink(path) and has_content(path, content):
            return
        create(f"{path}.new", content, mode)
        self.commit(f"{path}.new", path)


def has_content(path: str, content: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read() == content
    except OSError:
        return False


def create(path: str, content: Content, mode: int = 0o600) -> None:
    """A new file in place of what a killed run left; nobody else can read it before it has its mode."""
    unlink(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with contextlib.suppress(OSError):
        os.removexattr(descriptor, "system.posix_acl_access")  # which a directory may pass on
    with open(descriptor, "wb") as file:
        if isinstance(content, bytes):
            file.write(content)
        else:
            with open(content, "rb") as source:
                shutil.copyfileobj(source, file, 1 << 20)
        file.flush()
        if mode != 0o600:
            os.fchmod(descriptor, mode)


def sha256_of(path: str) -> str:
    """Empty where it cannot be read."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
    except OSError:
        return ""
    return digest.hexdigest()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        os.unlink(path)


def remove_tree(path: str) -> None:
    """A file, a link or a directory with everything in it."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        unlink(path)


def remove_empty(path: str) -> bool:
    """Was it an empty directory?"""
    try:
        os.rmdir(path)
    except OSError:
        return False
    return True


def copy_exactly(source: str, target: str) -> None:
    """A file, a link or a directory, with its owner, mode and times, as `cp -pPR` does."""
    if os.path.islink(source):
        os.symlink(os.readlink(source), target)
    elif os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
        for name in os.listdir(source):
            copy_exactly(os.path.join(source, name), os.path.join(target, name))
        shutil.copystat(source, target)
    elif os.path.isfile(source):
        unlink(target)
        shutil.copy2(source, target)
    else:
        status = os.lstat(source)  # a pipe, a socket or a device
        os.mknod(target, status.st_mode, status.st_rdev)
    status = os.lstat(source)
    with contextlib.suppress(PermissionError):
        os.chown(target, status.st_uid, status.st_gid, follow_symlinks=False)
        if not os.path.islink(source):
            os.chmod(target, status.st_mode & 0o7777)  # chown clears set-id bits
