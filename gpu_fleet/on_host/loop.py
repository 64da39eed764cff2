"""What a program of ours does every few seconds, in one process: to start Python and to import its modules takes several times
the CPU time of the work."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Callable, Sequence

LONGEST_S = 60
_PACKAGE = Path(__file__).parent
_WAKES_S = 0.5  # signals do not interrupt Python's sleep


def every(interval_s: float, once: Callable[[], object], program: Sequence[str], is_stopping: Callable[[], bool]) -> None:
    """Until it is stopped. `once` may take LONGEST_S: SIGALRM ends what hangs, and the service manager starts it again.
    `program`: our name and arguments, to start over when our code has changed."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    code, said = _code(), ""
    while not is_stopping():
        began, failed = time.monotonic(), ""
        signal.alarm(LONGEST_S)
        try:
            once()
        except OSError as error:  # a full disk, or a directory that somebody removed: the old times in the files show it
            failed = str(error)
        signal.alarm(0)
        if failed and failed != said:
            print(f"{program[0]}: {failed}", file=sys.stderr, flush=True)
        said = failed
        until = max(began + interval_s, time.monotonic() + 1)
        while not is_stopping() and time.monotonic() < until:
            time.sleep(max(0.0, min(_WAKES_S, until - time.monotonic())))
        if _code() != code and not is_stopping():
            os.execv(sys.executable, [sys.executable, "-I", "-S", "-B", str(_PACKAGE.parent), *program])  # noqa: S606


def _code() -> Sequence[tuple[str, int, int]]:
    """Which files it is; one that is replaced has another inode."""
    found = []
    for path in sorted(_PACKAGE.rglob("*.py")):
        try:
            status = path.stat()
        except OSError:
            continue
        found.append((str(path), status.st_ino, status.st_mtime_ns))
    return found
