"""One package transaction, separate from the run that needs it: in its own unit or session, so that Ctrl-C, a lost connection, a
timer's time limit or a shutdown ends the waiting but never interrupts apt or dnf. packages.py starts it from a copy of the whole
program, since the bundle may be deleted meanwhile, and waits.

Only new packages are installed: one that would upgrade, replace or hide anything on this host is refused before it is unpacked.

Arguments: DIRECTORY FAMILY install|reinstall|purge|resolve NAME... (purge: NAME/remove keeps its configuration files)
           DIRECTORY debian guard: what apt calls before it unpacks anything
DIRECTORY: environment  the proxy settings of the run that started this, for sh
           lock         held while this runs
           planned      what apt or dnf is about to install, in its own format, on disk before the first package is unpacked
           refused      why nothing was installed
           names        what this transaction installed, NAME TAB HOW: how it is uninstalled, purge or remove
           said         what was repaired first, for people
           stderr       of the package manager
           attempt      all that its last attempt printed, and updated: when it fetched its lists
           status       exit code, written last
"""

from __future__ import annotations

import fcntl
import os
import shlex
import signal
import sys
from typing import IO

from .disk import create
from .programs import read_or_empty
from .transaction_debian import Debian
from .transaction_rhel import Rhel

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What administrators hook into apt for their own upgrades: needrestart would restart services of the host, jobs and all (MODE is
# for versions that know no SUSPEND); the others would ask questions, or mail answers.
_QUIET = {
    "LC_ALL": "C",
    "DEBIAN_FRONTEND": "noninteractive",
    "NEEDRESTART_SUSPEND": "1",
    "NEEDRESTART_MODE": "l",
    "APT_LISTCHANGES_FRONTEND": "none",
    "APT_LISTBUGS_FRONTEND": "none",
    "UCF_FORCE_CONFFOLD": "1",
}


def _no_interrupt(*_: object) -> None:
    """Caught instead of ignored: child processes would inherit ignored signals forever."""


def main(arguments: list[str]) -> int:
    directory, family, verb, *names = arguments
    os.environ["PATH"] = f"{os.environ.get('PATH', '')}:{_PATH}".lstrip(":")
    os.environ.update(_QUIET)
    for word in shlex.split(read_or_empty(f"{directory}/environment")):
        name, is_value, value = word.partition("=")
        if is_value:
            os.environ[name] = value
    transaction: Debian | Rhel = Debian(directory) if family == "debian" else Rhel(directory)
    if verb == "guard":
        return Debian(directory).guard(sys.stdin.read())
    lock: IO[str] = open(f"{directory}/lock", "a")  # noqa: SIM115 # until the process ends
    os.dup2(os.open(f"{directory}/stderr", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), 2)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _no_interrupt)
    for name in ("planned", "names", "log"):
        transaction.append(name, "")
    fcntl.flock(lock, fcntl.LOCK_EX)
    code = 0
    if verb == "install":
        code = transaction.install(names)
    elif verb == "reinstall":
        code = transaction.reinstall(names)
    elif verb == "purge":
        code = transaction.purge(names)
    os.truncate(f"{directory}/names", 0)
    transaction.append("names", "".join(f"{line}\n" for line in transaction.installed()))
    transaction.flush("names")
    create(f"{directory}/status.new", f"{code}\n".encode())
    transaction.flush("status.new")
    os.rename(f"{directory}/status.new", f"{directory}/status")
    return 0
