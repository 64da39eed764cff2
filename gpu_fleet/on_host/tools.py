"""Running the tools of GPU drivers, which may hang where nothing can kill them.

While a driver hangs, its tool often waits in the kernel, and no signal ends it. So a tool is given up after a while; and none is
started until the hanging one has ended, because each would leave one more process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import time
from pathlib import Path
from typing import Iterator, Mapping, NamedTuple, Sequence

from . import output
from .files import replace

TERM_S = 2.0  # from SIGTERM to SIGKILL
KILL_S = 1.0  # from SIGKILL to giving up

# Non-login shells and service managers often have a PATH without these: ROCm installs below /opt, WSL and GKE mount the driver's
# tools from the host.
PLACES = (
    *("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/opt/rocm/bin"),
    *("/usr/local/nvidia/bin", "/usr/lib/wsl/lib"),
)


class CollectError(Exception):
    """A collector has no result; the text says why. `unreadable`: how many GPUs cannot be read, where that is known."""

    def __init__(self, reason: str, unreadable: int | None = None) -> None:
        super().__init__(reason)
        self.unreadable = unreadable


class TooMuch(CollectError):
    """The tool printed more than a tool does, and was ended."""


class Stopped(Exception):
    """The program has been asked to end, so no other tool is started."""


class Answer(NamedTuple):
    """`text`: stdout, and stderr where it was asked for. `status`: exit status; None when it did not end in time, or printed
    more than `most`."""

    text: str
    status: int | None


class Process(NamedTuple):
    pid: int
    start: int  # in clock ticks since boot, so that a pid that is used again is another process
    name: str


class Tools:
    """`record`: the file that remembers a tool that nothing could kill, from one run to the next; None: there is no next run.
    `environment`: that of the tools, in which they are looked for."""

    def __init__(self, record: Path | None, environment: Mapping[str, str] = os.environ) -> None:
        self._record = record
        self._environment = environment
        self.stopping = False

    def find(self, *names: str) -> str:
        """The path of the first of these tools that this host has. Raises CollectError."""
        for name in names:
            for directory in _places(self._environment):
                path = Path(directory, name)
                if path.is_file() and os.access(path, os.X_OK):
                    return str(path)
        raise CollectError(f"this host has no {' or '.join(names)}")

    def ask(
        self,
        within_s: float,
        command: Sequence[str],
        *,
        with_stderr: bool = True,
        most: int = output.MOST_BYTES,
        cut: bool = False,
    ) -> Answer:
        """What the tool prints, ended after `within_s`. Its exit status is no error: with one of eight GPUs lost it is not 0.

        Raises CollectError when it cannot be ended, TooMuch when it prints more than `most` bytes (with `cut` it is ended, and
        these are its answer), Stopped when no tool is to be started.
        """
        if self.stopping:
            raise Stopped
        began = time.time()
        nothing, pipe, errors = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT if with_stderr else subprocess.DEVNULL
        try:
            child = subprocess.Popen(
                command, stdin=nothing, stdout=pipe, stderr=errors, env=self._environment, start_new_session=True
            )
        except OSError as error:
            return Answer(f"{command[0]}: {error.strerror}\n", 127)
        assert child.stdout
        with child.stdout:
            said = output.Output(child, most)
            status = child.returncode if said.has_ended(within_s, until_cut=True) else None
            for number, wait_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
                if child.returncode is None:
                    with contextlib.suppress(OSError):
                        os.killpg(child.pid, number)
                    said.has_ended(wait_s)
            left = self._end(child.pid) if status is None else None
        if left:
            self._remember(left, began)
            raise CollectError(_hangs(left.name, left.pid, began))
        if said.is_cut and not cut:
            raise TooMuch(str(output.TooMuch(command[0], most)))
        return Answer(said.stdout.decode("utf-8", "replace"), status)

    def hanging(self) -> str:
        """What nothing can kill, as a reason why there is no result; empty when there is no such process any more."""
        if self._record is None:
            return ""
        try:
            pid, start, began, name = self._record.read_text().split(" ", 3)
            if any((process.pid, process.start) == (int(pid), int(start)) for process in _processes(int(pid))):
                return _hangs(name, int(pid), float(began))
        except (OSError, ValueError):
            pass
        with contextlib.suppress(OSError):
            self._record.unlink()
        return ""

    def _end(self, session: int) -> Process | None:
        """Ends what is left of a session; returns a process that cannot be ended."""
        deadline = time.monotonic() + KILL_S
        while True:
            left = [process for process in _processes() if _session(process.pid) == session]
            if not left:
                return None
            if time.monotonic() > deadline:
                return left[0]
            for process in left:
                with contextlib.suppress(OSError):
                    os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.05)

    def _remember(self, process: Process, began: float) -> None:
        if self._record is None:
            return
        with contextlib.suppress(OSError):
            replace(self._record, f"{process.pid} {process.start} {began:.0f} {process.name}")


def _hangs(name: str, pid: int, began: float) -> str:
    return f"{name} (process {pid}) cannot be killed, and has not ended for {time.time() - began:.0f} s: the driver hangs"


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1


def _processes(pid: int | None = None) -> Iterator[Process]:
    """Those that have not ended, or that of this pid. A zombie has ended, unless threads of it are left."""
    for directory in Path("/proc").glob("[0-9]*") if pid is None else [Path(f"/proc/{pid}")]:
        try:
            text = (directory / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        before, _, after = text.rpartition(")")  # a name may contain anything
        name, rest = before.partition("(")[2], after.split()
        if rest[0] != "Z" or int(rest[17]) > 1:
            yield Process(int(directory.name), int(rest[19]), name)


def _places(environment: Mapping[str, str]) -> Iterator[str]:
    root = environment.get("GPU_FLEET_ROOT", "")  # where the file system begins, for the tests
    for name in ("GPU_FLEET_TOOL_PATH", "PATH"):
        yield from filter(None, environment.get(name, "").split(":"))
    yield from PLACES
    # GKE's directory is below /home. What is found there may be run as root, and on another system a user named kubernetes could
    # place it.
    gke = [f"{root}/home/kubernetes{below}" for below in ("", "/bin", "/bin/nvidia", "/bin/nvidia/bin")]
    if all(_is_roots(path) for path in gke):
        yield gke[-1]


def _is_roots(path: str) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return found.st_uid == 0 and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
