"""What a command costs: wall time, and the memory of all its processes together."""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SAMPLE_S = 0.1
_PAGE_KB = 4


@dataclass(frozen=True)
class Cost:
    seconds: float
    peak_mb: float  # resident, summed over the processes: pages that they share count in each


def cost_of(process: subprocess.Popen[str]) -> tuple[Cost, str]:
    """Waits for a process whose output is a pipe, and returns that too."""
    begin, peak_kb = time.monotonic(), 0
    ended = threading.Event()

    def watch() -> None:
        nonlocal peak_kb
        while not ended.wait(_SAMPLE_S):
            peak_kb = max(peak_kb, sum(_resident_kb(pid) for pid in _family(process.pid)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    output, _ = process.communicate()
    seconds = time.monotonic() - begin
    ended.set()
    watcher.join()
    return Cost(round(seconds, 1), round(peak_kb / 1024, 0)), output


def _family(root: int) -> Iterator[int]:
    """The process and all below it."""
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
