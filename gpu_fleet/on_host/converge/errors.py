"""Errors, with the codes that README.md lists."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Iterator, Sequence

from . import causes


class Failure(Exception):
    """`log`: the last lines of what failed."""

    def __init__(self, code: str, message: str, log: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.log: list[str] = list(log)

    @classmethod
    def saying(cls, code: str, what: str, said: str) -> Failure:
        """With the line of a program's output that names what the host lacks or denies, else with its last line."""
        lines = [line.strip() for line in said.split("\n") if line.strip(" ")]
        for line in lines:
            cause = causes.of_line(line)
            if cause:
                return cls(cause.code, _joined(f"{what}: {line}", cause.fix))
        return cls(code, f"{what}: {lines[-1] if lines else 'no reason was given'}")

    @classmethod
    def of(cls, what: str, error: OSError) -> Failure:
        cause = causes.of_error(error, what) or causes.Cause("internal")
        return cls(cause.code, _joined(f"{what}: {error.strerror or error}", cause.fix))


def _joined(what: str, fix: str) -> str:
    return f"{what}; {fix}" if fix else what


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
