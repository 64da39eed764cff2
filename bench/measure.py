"""Measures a command: wall time, and the memory of all its processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SAMPLE_S = 0.1
_PAGE_KB = 4
_GRACE_S = 20


@dataclass(frozen=True)
class Cost:
    seconds: float
    peak_mb: float  # resident, summed over the processes: shared pages count in each


def cost_of(process: subprocess.Popen[str]) -> tuple[Cost, str]:
    """Waits for a process whose output is a pipe, and returns the output too. It must be a session leader: a Ctrl-C here ends it
    and all its children.
    """
    begin, peak_kb = time.monotonic(), 0
    ended = threading.Event()

    def watch() -> None:
        nonlocal peak_kb
        while not ended.wait(_SAMPLE_S):
            peak_kb = max(peak_kb, sum(_resident_kb(pid) for pid in _family(process.pid)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        output, _ = process.communicate()
    except BaseException:
        _end(process)
        raise
    finally:
        ended.set()
        watcher.join()
    seconds = time.monotonic() - begin
    return Cost(round(seconds, 1), round(peak_kb / 1024, 0)), output


def _end(process: subprocess.Popen[str]) -> None:
    """Sends SIGINT, as Ctrl-C in a terminal does, and SIGKILL if that takes too long."""
    for number in (signal.SIGINT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=_GRACE_S)
            return


def _family(root: int) -> Iterator[int]:
    """The process and all its descendants."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += children.get(pid, ())


def _resident_kb(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_KB
    except (OSError, IndexError):
        return 0
