"""What can go wrong, told to a person: str() of each says what happened and what to do next."""

from __future__ import annotations

import errno
from pathlib import Path


class ToolchainError(Exception):
    """A program could not be had."""


class NotInstalled(ToolchainError):
    """`find` met a program that nobody has installed yet."""


class WrongChecksum(ToolchainError):
    """A download is not the file it should be. Never answered by another route: somebody has to look."""

    def __init__(self, what: str, *, expected: str, found: str, next_step: str):
        super().__init__(f"{what}: the checksum is wrong.\n  expected sha256 {expected}\n  found    sha256 {found}\n{next_step}")


class Unavailable(Exception):
    """One way to a program is closed; str() is the reason, and the next way is tried."""


def cache_trouble(error: OSError, cache: Path) -> ToolchainError | None:
    """The explanation of an error of the file system below the cache; None when the error is about something else."""
    elsewhere = "or set XDG_CACHE_HOME to a directory elsewhere, and run it again"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ToolchainError(
            f"The disk of {cache} is full ({error.strerror}). `python -m toolchain clean` frees the Go caches; "
            f"free more space {elsewhere}."
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
        return ToolchainError(
            f"Cannot write in the cache {cache}: {error.strerror} ({error.filename}). Make it writable for you {elsewhere}."
        )
    return None
