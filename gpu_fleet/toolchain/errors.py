"""Errors for users: str() of each says what happened and what to do next."""

from __future__ import annotations

import errno
from pathlib import Path


class ToolchainError(Exception):
    """A program could not be installed or found."""


class NotInstalled(ToolchainError):
    """`find` was called for a program that is not installed."""


class WrongChecksum(ToolchainError):
    """A download is not the expected file. No other source is tried: somebody has to look."""

    def __init__(self, what: str, *, expected: str, found: str, next_step: str):
        super().__init__(f"{what}: the checksum is wrong.\n  expected sha256 {expected}\n  found    sha256 {found}\n{next_step}")


class Unavailable(Exception):
    """One source of a program cannot be used; str() is the reason, and the next source is tried."""


def cache_trouble(error: OSError, cache: Path) -> ToolchainError | None:
    """The explanation of a file system error below the cache; None for any other error."""
    elsewhere = "or set XDG_CACHE_HOME to another directory, and run it again"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ToolchainError(
            f"The disk of {cache} is full ({error.strerror}). `.venv/bin/python -m gpu_fleet.toolchain clean` removes Go's "
            f"caches; free more space {elsewhere}."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
        return ToolchainError(
            f"Cannot write to the cache {cache}: {error.strerror} ({error.filename}). Make it writable {elsewhere}."
        )
    return None
