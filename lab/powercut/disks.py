"""File systems in files: mounted through loop devices with direct I/O, and copied at one instant."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lab.powercut.waits import finish, until

KINDS = ("ext4", "xfs")
# With the block and sector size of a loop device whose I/O is direct.
_MAKE = {
    "ext4": ("mkfs.ext4", "-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0"),
    "xfs": ("mkfs.xfs", "-q", "-f", "-s", "size=4096"),
}
_SIZE = 352 << 20  # bytes; mkfs.xfs makes none below 300 MiB
_SHELF_SIZE = 16 << 30  # sparse


def run(*command: str | Path) -> str:
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
    out, err = finish(process, f"`{' '.join(map(str, command))}`")
    if process.returncode != 0:
        raise RuntimeError(f"`{' '.join(map(str, command))}` exited {process.returncode}: {err.strip()}")
    return out.strip()


def _devices() -> dict[str, str]:
    """Loop device to the name of the image on it, also of one that was deleted meanwhile."""
    pairs = (
        line.split() for line in run("losetup", "--list", "--noheadings", "--raw", "--output", "NAME,BACK-FILE").splitlines()
    )
    return {pair[0]: Path(pair[1]).name for pair in pairs if len(pair) > 1}


def detach(prefix: str) -> None:
    """The loop devices of images with such a name: one of a process that was killed before it mounted it is on none."""
    for device, name in _devices().items():
        if name.startswith(prefix):
            with suppress(RuntimeError):  # the one below it ends with it
                run("losetup", "--detach", device)


def _is_unmounted(at: Path) -> bool:
    """Not at once: a machine that was just killed has copies of every mount, which keep images on a shelf in use for a moment."""
    with suppress(RuntimeError):
        run("umount", at)
    return not os.path.ismount(at)


@contextmanager
def mounted(image: Path, kind: str, at: Path) -> Iterator[Path]:
    """A copy of a mounted XFS has its UUID, which the kernel refuses without nouuid."""
    at.mkdir(parents=True, exist_ok=True)
    device = run("losetup", "--find", "--show", "--direct-io=on", image)
    try:
        run("mount", "-t", kind, *(("-o", "nouuid") if kind == "xfs" else ()), device, at)
    finally:
        run("losetup", "--detach", device)  # by the kernel, once it is no longer mounted, whatever ends this process
    try:
        yield at
    finally:
        until(lambda: _is_unmounted(at), f"for {at}, which was in use, to be unmounted")


@dataclass(frozen=True)
class Disk:
    image: Path
    kind: str

    @contextmanager
    def mounted(self, at: Path) -> Iterator[Path]:
        with mounted(self.image, self.kind, at):
            yield at

    def copy(self, name: str) -> Disk:
        """As it is at this instant, whatever is being written."""
        image = self.image.with_name(name)
        run("cp", "--reflink=always", self.image, image)
        return Disk(image, self.kind)

    def remove(self) -> None:
        self.image.unlink()


@contextmanager
def shelf(directory: Path) -> Iterator[Path]:
    """A directory whose files can be copied at one instant: an XFS of its own. Names of images begin with the directory's."""
    image = directory / f"{directory.name}-shelf"
    with image.open("wb") as file:
        file.truncate(_SHELF_SIZE)
    run(*_MAKE["xfs"], "-m", "reflink=1", image)
    with mounted(image, "xfs", directory / "shelf") as at:
        yield at
    image.unlink()


def new_disk(shelf: Path, name: str, kind: str) -> Disk:
    image = shelf / name
    with image.open("wb") as file:
        file.truncate(_SIZE)
    run(*_MAKE[kind], image)
    return Disk(image, kind)
