"""A machine for as long as one command runs: a root over a mounted disk, with processes, mounts and a network of its own. When
the command ends, or is killed, every process in it is gone."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

# $1: options of the overlay, $2: its root, $3: what becomes /srv, $4: the command.
_BOOT = """
set -eu
ip link set lo up
mount -t overlay overlay -o "$1" "$2"
mount -t proc proc "$2/proc"
mount --rbind /dev "$2/dev"
mount -t tmpfs tmpfs "$2/run"
mount -t tmpfs tmpfs "$2/tmp"
mount --bind "$3" "$2/srv"
exec chroot "$2" /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C sh -c "$4"
"""


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
        try:
            out, err = process.communicate(timeout=300)
        except BaseException:
            process.kill()
            process.wait()
            raise
        return process.returncode, out, err
