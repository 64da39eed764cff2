"""Why a package could not be installed, from what its transaction left in its directory."""

from __future__ import annotations

import re
from typing import Callable

from .. import package_errors
from . import causes
from .errors import Failure
from .programs import run


def of(family: str, name: str, read: Callable[[str], str]) -> Failure:
    """`read`: of a file of the transaction (transaction.py), empty where there is none."""
    attempt, updated = read("attempt"), read("updated")
    held = run("apt-mark", "showhold").stdout.split() if family == "debian" else []
    reason = package_errors.reason(family, name, attempt, updated, held)
    code, fix = reason.code, reason.fix
    # What the host lacks or denies may stand in front of what apt and dnf make of it.
    for line in (reason.what, *attempt.replace("\r", "\n").split("\n")):
        cause = causes.of_line(line)
        if cause:
            what = " ".join((reason.what if line in reason.what else line).split())
            return _failure(cause.code, name, what, cause.fix, read)
    short = re.search(r"on the (/\S*)$", reason.what)
    if short:  # rpm counts what is mounted read-only as full
        cause = next(filter(None, map(causes.of_read_only, (short[1], "/usr", "/var/lib"))), None)
        code, fix = (cause.code, cause.fix) if cause else (code, fix)
    repair = [line for line in read("said").split("\n") if " failed: " in line]
    if repair:  # of what an earlier killed run left
        fix = "; ".join(filter(None, (repair[-1], fix)))
    return _failure(code, name, reason.what, fix, read)


def _failure(code: str, name: str, what: str, fix: str, read: Callable[[str], str]) -> Failure:
    log = [line for line in read("stderr").split("\n") if line]
    return Failure(code, f"cannot install package {name}: {what}{'; ' if fix else ''}{fix}", log)
