"""Waits that end: with what they wait for, or with an error that names it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable

# Child processes inherit the priority. At idle priority everything else on this machine runs first.
IS_IDLE = os.sched_getscheduler(0) == os.SCHED_IDLE
# Of one step. On an otherwise idle machine an apply takes about a second, and `pulumi up` about five.
LIMIT_S = 1800 if IS_IDLE else 600
_KILLED_S = 60


class Stuck(RuntimeError):
    """The message says what was waited for."""


def finish(process: subprocess.Popen[str], what: str) -> tuple[str, str]:
    """What a process printed that ends by itself, or is about to die: stdout and stderr."""
    try:
        out, err = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        try:
            out, err = process.communicate(timeout=_KILLED_S)
        except subprocess.TimeoutExpired:  # in an uninterruptible system call, or a child process keeps the pipes open
            out = err = ""
        raise Stuck(f"{what} did not end within {LIMIT_S} s; its last output: {out[-1000:]}{(err or '')[-1000:]}") from None
    return out or "", err or ""


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > end:
            raise Stuck(f"waited {LIMIT_S} s {what}")
        time.sleep(0.05)
