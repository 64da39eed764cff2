"""Plugins that a killed engine left running on this machine.

Pulumi's official plugins and its language host do not see that the engine is gone: they finish what they were asked for, and wait
for more, up to 15 minutes (pulumi 3.259.0, kubernetes 4.32.0). A second run would then work on the same resources at the same
time. Ours end by themselves, in order. What belongs to a run is known by a variable in its environment; where the system has no
/proc nothing is ended, and a run of another stack never is.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

RUN: Final = "GPU_FLEET_RUN_OF"
_ENDS_S: Final = 5.0  # our provider looks for its engine each second, and takes leave of its hosts
_ENGINE: Final = "pulumi"
_PLUGINS: Final = (b"pulumi-resource-", b"pulumi-language-")
_PROC: Final = Path("/proc")


def variables(stack: str) -> dict[str, str]:
    """For the environment of pulumi, which its plugins inherit."""
    return {RUN: _value(stack)}


def end_leftovers(stack: str) -> int:
    """Ends what runs of this stack left, and says how many processes that were."""
    found = list(_leftovers(stack))
    if not found:
        return 0
    _await_end(stack, _ENDS_S)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in _leftovers(stack):
            try:
                os.kill(process, number)
            except ProcessLookupError:
                continue
        _await_end(stack, _ENDS_S)
    return len(found)


def _await_end(stack: str, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while any(_leftovers(stack)) and time.monotonic() < deadline:
        time.sleep(0.1)


def _leftovers(stack: str) -> Iterator[int]:
    """Processes of this user that belong to runs of the stack and have no engine above them."""
    wanted = f"{RUN}={_value(stack)}".encode()
    for directory in _PROC.glob("[0-9]*"):
        try:
            if directory.stat().st_uid != os.getuid() or wanted not in (directory / "environ").read_bytes().split(b"\0"):
                continue
            if _is_plugin(directory) and not _has_engine(int(directory.name)):
                yield int(directory.name)
        except (OSError, ValueError):
            continue  # it has ended, or is not ours to read


def _is_plugin(directory: Path) -> bool:
    """Whether it is one, and not what one has started: the servers of an embedded backend are to run on."""
    program = (directory / "cmdline").read_bytes().split(b"\0")[:2]  # of a script the second, after its interpreter
    return any(each.rpartition(b"/")[2].startswith(_PLUGINS) for each in program)


def _has_engine(process: int) -> bool:
    """Whether it is one, or was started below one that still runs. Raises OSError when it has ended."""
    while process > 1:
        # PID (NAME) STATE PARENT ...; the name may hold anything.
        head, _, rest = (_PROC / str(process) / "stat").read_text().rpartition(")")
        state, parent = rest.split()[:2]
        if state == "Z":
            raise ProcessLookupError
        if head.partition("(")[2] == _ENGINE:
            return True
        process = int(parent)
    return False


def _value(stack: str) -> str:
    return f"{stack.rpartition('/')[2]} in {Path.cwd()}"
