"""Groups of processes that end together. What was started in a group is found and ended there even after its starter was
killed, and nothing else ever is: no process is looked for by name."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lab.hosts.errors import HostsError
from lab.hosts.needs import unified_cgroups

_NAME = "gpu-fleet-lab"
_SYSTEMD_V1 = Path("/sys/fs/cgroup/systemd")  # machines with the old tree: nspawn wants a group of its own there too
_END_S = 120


@dataclass(frozen=True)
class Group:
    """`name`: SITE or SITE/HOST."""

    name: str

    def create(self) -> None:
        for directory in self._directories():
            directory.mkdir(parents=True, exist_ok=True)

    def entering(self) -> Callable[[], None]:
        """For subprocess's preexec_fn: the new process begins its life in the group."""
        files = [os.fspath(directory / "cgroup.procs") for directory in self._directories()]

        def enter() -> None:
            for file in files:
                with open(file, "w") as procs:  # noqa: PTH123  between fork and exec, as little as possible
                    procs.write("0")

        return enter

    def is_alive(self) -> bool:
        return "populated 1" in self._read("cgroup.events")

    def processes(self) -> list[int]:
        """Of this group and of the groups below it."""
        found: list[int] = []
        # os.walk passes over a group that ends meanwhile, such as that of a login; Path.glob of Python 3.11 does not.
        for directory, _, _ in os.walk(self._directories()[0]):
            with contextlib.suppress(OSError):
                found += map(int, Path(directory, "cgroup.procs").read_text().split())
        return found

    def end(self) -> None:
        """Kills every process of the group and of the groups below it, and removes them all."""
        unified, *others = self._directories()
        if unified.is_dir():
            with contextlib.suppress(FileNotFoundError):
                (unified / "cgroup.kill").write_text("1")
        deadline = time.monotonic() + _END_S
        while self.is_alive():
            if time.monotonic() > deadline:
                raise HostsError(
                    f"Processes in {unified} did not end within {_END_S} s; the kernel holds them. See its cgroup.procs."
                )
            time.sleep(0.02)
        for directory in (unified, *others):
            _remove_tree(directory)

    def _read(self, file: str) -> str:
        try:
            return (self._directories()[0] / file).read_text()
        except OSError:
            return ""

    def _directories(self) -> list[Path]:
        unified = unified_cgroups()
        if unified is None:
            raise HostsError("No cgroup v2 is mounted on this machine.")
        trees = [unified, *([_SYSTEMD_V1] if (_SYSTEMD_V1 / "cgroup.procs").exists() else [])]
        return [tree / _NAME / self.name for tree in trees]


def _remove_tree(directory: Path) -> None:
    """Innermost first; a group that another tree of the kernel still holds for an instant is tried again."""
    if not directory.is_dir():
        return
    for below in sorted(directory.rglob("*/"), key=lambda path: len(path.parts), reverse=True):
        _rmdir(below)
    _rmdir(directory)


def _rmdir(directory: Path) -> None:
    for _ in range(50):
        try:
            directory.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.02)
