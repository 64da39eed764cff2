"""Why a package could not be installed, from what its transaction left in its directory."""

from __future__ import annotations

import re
from typing import Callable

from .. import package_errors
from . import causes
from .errors import Failure
from .programs import lines_of, run

# Where apt and dnf write; not all of their messages have a path.
_PLACES = ("/var/cache/apt/archives", "/var/lib/apt/lists", "/var/lib/dpkg", "/var/cache/dnf", "/var/lib/rpm", "/usr", "/tmp")  # noqa: S108


def of(family: str, name: str, read: Callable[[str], str]) -> Failure:
    """`read`: of a file of the transaction (transaction.py), empty where there is none."""
    attempt, updated = package_errors.plain(read("attempt")), package_errors.plain(read("updated"))
    held = run("apt-mark", "showhold").stdout.split() if family == "debian" else []
    reason = package_errors.reason(family, name, attempt, updated, held)
    what, code, fix = reason.what, reason.code, reason.fix
    # What the host lacks or denies may stand in front of what apt and dnf make of it.
    lines = f"{what}\n{attempt}\n{updated if code == 'download' else ''}".split("\n")
    found = next(((line, cause) for line in lines for cause in [causes.of_line(line)] if cause), None)
    short = re.search(r"on the (/\S*)$", what)
    if found:
        line, cause = found
        what = what if line.strip() in what else " ".join(line.split())
        code, fix = cause.code, cause.fix
    elif short:  # rpm counts what is mounted read-only as full
        read_only = next(filter(None, map(causes.of_read_only, (short[1], "/usr", "/var/lib/rpm"))), None)
        code, fix = (read_only.code, read_only.fix) if read_only else (code, fix)
    if fix in ("", causes.FREE_SOME):
        full = causes.of_full([place for each in _PLACES for place in causes.existing(each)])
        code, fix = ("disk-full", full) if full else (code, fix)
    repair = [line for line in read("said").split("\n") if " failed: " in line]
    fix = "; ".join(filter(None, (*repair[-1:], fix)))  # of what an earlier killed run left
    log = [_without_logins(line) for line in lines_of(read("stderr"))]
    return Failure(code, f"cannot install package {name}: {_without_logins(what)}{'; ' if fix else ''}{fix}", log)


def _without_logins(line: str) -> str:
    """dnf prints the settings of a repository, its password among them, and addresses as they are written."""
    return re.sub(r"//[^/@\s]*@", "//", re.sub(r"^((?:proxy_)?(?:username|password): ).*", r"\1", line))
