"""A machine for as long as one command runs, or as somebody works on it: a root over a mounted disk, with processes, mounts and a
network of its own. When it ends, or is killed, every process in it is gone."""

from __future__ import annotations

import select
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lab.powercut.waits import LIMIT_S, Stuck, finish

_ENVIRONMENT = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C"
# $1: options of the overlay, $2: its root, $3: what becomes /srv, $4: the command. Not dash: as process 1, to which processes of
# killed parents fall, it was seen to wait for ever for a command that had ended (0.5.12).
_BOOT = f"""
set -eu
ip link set lo up
mount -t overlay overlay -o "$1" "$2"
mount -t proc proc "$2/proc"
mount --rbind /dev "$2/dev"
mount -t tmpfs tmpfs "$2/run"
mount -t tmpfs tmpfs "$2/tmp"
mount --bind "$3" "$2/srv"
exec chroot "$2" /usr/bin/env -i {_ENVIRONMENT} bash -c "$4"
"""
# The shell stays, as process 1, which collects the processes that others leave.
_STAY = "mkdir -p /run/sshd; /usr/sbin/sshd -f /srv/sshd_config; echo booted; while :; do sleep 3600; done"


@dataclass(frozen=True)
class Booted:
    """A machine with sshd. `pid`: its process 1, as this machine numbers it."""

    pid: int

    def run(self, command: str) -> tuple[int, str, str]:
        inside = ["nsenter", f"--target={self.pid}", "--mount", "--net", "--pid", "--root", "--wd"]
        process = subprocess.Popen(
            [*inside, "/usr/bin/env", "-i", *_ENVIRONMENT.split(), "sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        out, err = finish(process, "a command on the machine")
        return process.returncode, out, err

    def in_its_network(self) -> tuple[str, ...]:
        """What makes a command of this machine reach the other one at 127.0.0.1."""
        return ("nsenter", f"--target={self.pid}", "--net")

    def processes(self) -> Iterator[tuple[int, str]]:
        """Number and command line, of which each word ends with a NUL."""
        space = Path(f"/proc/{self.pid}/ns/pid").readlink()
        for directory in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if (directory / "ns/pid").readlink() == space:
                    yield int(directory.name), (directory / "cmdline").read_text(errors="replace")


@dataclass(frozen=True)
class Machine:
    """`disk`: where its disk is mounted. `layers`: the layers below it, uppermost first. `shared`: its /srv."""

    disk: Path
    layers: tuple[Path, ...]
    shared: Path

    def start(self, command: str) -> subprocess.Popen[str]:
        for name in ("upper", "work"):
            (self.disk / name).mkdir(exist_ok=True)
        root = self.disk.with_name(self.disk.name + "-root")
        root.mkdir(exist_ok=True)
        overlay = f"lowerdir={':'.join(map(str, self.layers))},upperdir={self.disk / 'upper'},workdir={self.disk / 'work'}"
        spaces = ("--mount", "--propagation", "private", "--net", "--pid", "--fork", "--kill-child=SIGKILL")
        return subprocess.Popen(
            ["unshare", *spaces, "sh", "-c", _BOOT, "boot", overlay, str(root), str(self.shared), command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    def run(self, command: str) -> tuple[int, str, str]:
        process = self.start(command)
        out, err = finish(process, "a command on the machine")
        return process.returncode, out, err

    @contextmanager
    def booted(self) -> Iterator[Booted]:
        process = self.start(_STAY)
        try:
            if not select.select([process.stdout], [], [], LIMIT_S)[0]:
                raise Stuck(f"waited {LIMIT_S} s for the machine to boot")
            if process.stdout is None or process.stdout.readline() != "booted\n":
                raise RuntimeError(f"the machine did not boot: {finish(process, 'the boot')[1]}")
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            yield Booted(int(children.read_text()))
        finally:
            process.kill()
            finish(process, "the killed machine")
