"""Errors, with the codes that README.md lists."""

from __future__ import annotations

import errno
from contextlib import contextmanager
from typing import Iterator, Sequence

_FULL = ("No space left on device", "Disk quota exceeded")
_DENIED = ("Permission denied", "Read-only file system", "Operation not permitted")


class Failure(Exception):
    """`log`: the last lines of what failed."""

    def __init__(self, code: str, message: str, log: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.log: list[str] = list(log)

    @classmethod
    def saying(cls, code: str, what: str, said: str) -> Failure:
        """With the last line of the output of a program; a full disk and a denied write have codes of their own."""
        lines = [line for line in said.split("\n") if line.strip(" ")]
        last = lines[-1] if lines else ""
        if any(word in said for word in _FULL):
            return cls("disk-full", f"{what}: {last}; free some space and apply again")
        if any(word in said for word in _DENIED):
            return cls("no-write", f"{what}: {last}")
        return cls(code, f"{what}: {last or 'no reason was given'}")

    @classmethod
    def of(cls, what: str, error: OSError) -> Failure:
        reason = error.strerror or str(error)
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return cls("disk-full", f"{what}: {reason}; free some space and apply again")
        if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM):
            return cls("no-write", f"{what}: {reason}")
        return cls("internal", f"{what}: {reason}")


class Pending(Failure):
    """The part cannot be finished now: what was placed stays, what runs goes on, and a later run finishes it."""


def explained(error: Failure | OSError) -> Failure:
    return error if isinstance(error, Failure) else Failure.of(f"cannot use {error.filename or 'this host'}", error)


@contextmanager
def attempt(what: str) -> Iterator[None]:
    """An OSError in it becomes a Failure that says what was tried."""
    try:
        yield
    except OSError as error:
        raise Failure.of(what, error) from error
