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
POLL_S = 0.005  # at first; a tool takes from 10 ms to seconds

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
        with contextlib.closing(output.Pipe(most)) as pipe:
            errors = subprocess.STDOUT if with_stderr else subprocess.DEVNULL
            try:
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=pipe.end,
                    stderr=errors,
                    env=self._environment,
                    start_new_session=True,
                    close_fds=True,
                )
            except OSError as error:
                return Answer(f"{command[0]}: {error.strerror}\n", 127)
            pipe.started()
            status = _wait(child, within_s, pipe)
            for signal_number, wait_s in ((signal.SIGTERM, TERM_S), (signal.SIGKILL, KILL_S)):
                if status is not None:
                    break
                _signal(child.pid, signal_number)
                if _wait(child, wait_s, None) is not None:
                    break
            left = self._end(child.pid, killed=status is None)
            if left:
                self._remember(left, began)
                raise CollectError(_hangs(left.name, left.pid, began))
            text = pipe.text()
            if pipe.is_cut and not cut:
                raise TooMuch(str(output.TooMuch(command[0], most)))
            return Answer(text, status)

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

    def _end(self, session: int, *, killed: bool) -> Process | None:
        """Ends what is left of a session; returns a process that cannot be ended."""
        deadline = time.monotonic() + KILL_S
        while True:
            left = [process for process in _processes() if _session(process.pid) == session] if killed else []
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


def _wait(child: subprocess.Popen[bytes], within_s: float, pipe: output.Pipe | None) -> int | None:
    """The exit status, or None: it prints too much, or does not end. Popen.wait(timeout) begins with longer pauses."""
    deadline, pause = time.monotonic() + within_s, POLL_S
    while child.poll() is None:
        left = deadline - time.monotonic()
        if left <= 0 or (pipe and pipe.is_cut):
            return None
        (pipe.take if pipe else time.sleep)(min(pause, left))
        pause = min(pause * 1.5, 0.1)
    return child.returncode


def _signal(session: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(session, number)


def _processes(pid: int | None = None) -> Iterator[Process]:
    """Those that have not ended, or that of this pid. A zombie has ended, unless threads of it are left."""
    for directory in Path("/proc").glob("[0-9]*") if pid is None else [Path(f"/proc/{pid}")]:
        try:
            text = (directory / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        name, rest = _stat(text)
        if rest[0] != "Z" or int(rest[17]) > 1:
            yield Process(int(directory.name), int(rest[19]), name)


def _stat(text: str) -> tuple[str, Sequence[str]]:
    """The name, which may contain anything, and the fields after it, from the state on."""
    return text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()


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
