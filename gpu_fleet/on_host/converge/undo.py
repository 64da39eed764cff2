"""A part's state before a run changed it, so that a part that does not come up can be restored.

undo/PART/placed   the part's records before
undo/PART/list     PATH TAB N for each file changed since, N the name of the old one here, `-` when there was none
It survives an interrupted run, so the next one still knows the last state that worked.
"""

from __future__ import annotations

import glob
import os
import shutil
from typing import Mapping

from .disk import Disk, copy_exactly, create, remove_empty, remove_tree, sha256_of, unlink
from .errors import Failure, attempt
from .files import Files
from .host import Host
from .programs import read_or_empty
from .records import Placed, Record, parse, render


def saved_copy(host: Host, part: str, path: str) -> str:
    """Of a file as it was before the part was changed; empty where there is none."""
    directory = f"{host.state}/undo/{part}"
    for each, name in _entries(directory):
        if each == path and name != "-":
            return f"{directory}/{name}"
    return ""


def exists_for(host: Host, part: str) -> bool:
    return os.path.isdir(f"{host.state}/undo/{part}")


class Undo:
    def __init__(self, host: Host, disk: Disk, files: Files, part: str) -> None:
        self._host = host
        self._disk = disk
        self._files = files
        self._directory = f"{host.state}/undo/{part}"

    def begin(self, placed: Placed, part: str) -> None:
        for left in (
            *glob.glob(f"{glob.escape(self._host.state)}/undo/*.gone"),
            f"{self._directory}.new",
        ):  # of runs that were killed
            remove_tree(left)
        if os.path.isdir(self._directory):
            return
        with attempt(f"cannot keep the state of {part}"):
            os.makedirs(f"{self._host.state}/undo", 0o700, exist_ok=True)
            os.mkdir(f"{self._directory}.new", 0o700)
            create(f"{self._directory}.new/placed", render(placed.of(part)))
            create(f"{self._directory}.new/list", b"")
            os.rename(f"{self._directory}.new", self._directory)

    def placed(self) -> list[Record]:
        return parse(read_or_empty(f"{self._directory}/placed"))

    def save(self, path: str) -> None:
        """The current file, unless that was done already."""
        entries = _entries(self._directory)
        if any(each == path for each, _ in entries):
            return
        at = self._host.at(path)
        if os.path.isdir(at) and not os.path.islink(at) and not remove_empty(at):
            raise Failure("internal", f"{at} is a directory, expected a file; move it away and apply again")
        name = "-"
        if os.path.lexists(at):
            name = str(len(entries))
            copy = f"{self._directory}/{name}"
            with attempt(f"cannot keep the old {at}"):
                _link_or_copy(at, copy)
        with open(f"{self._directory}/list", "ab") as file:
            file.write(f"{path}\t{name}\n".encode("utf-8", "surrogateescape"))

    def restore_files(self, like: Mapping[str, str] | None = None) -> None:
        """All; or only those that are `like` these, sha256 by path."""
        for path, name in _entries(self._directory):
            at = self._host.at(path)
            if like is not None and (name == "-" or sha256_of(f"{self._directory}/{name}") != like.get(path)):
                continue
            if name == "-":
                unlink(at)
                self._disk.will_flush(os.path.dirname(at))
            else:
                new = self._files.new_name(path)
                with attempt(f"cannot restore {at}"):
                    _link_or_copy(f"{self._directory}/{name}", new)
                    self._disk.commit(new, at)
                    # Where both are links to the same file, renaming did nothing.
                    unlink(new)

    def end(self) -> None:
        """Deletes the saved state atomically, so that an interrupted cleanup does not look like a state to restore."""
        if not os.path.isdir(self._directory):
            return
        os.rename(self._directory, f"{self._directory}.gone")
        shutil.rmtree(f"{self._directory}.gone", ignore_errors=True)
        self._disk.will_flush(f"{self._host.state}/undo")


def _link_or_copy(source: str, target: str) -> None:
    """A hard link costs no space for a large binary; we never write into a file in place. Other file systems need a copy."""
    unlink(target)  # left by a run that was killed here
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        copy_exactly(source, target)


def _entries(directory: str) -> list[tuple[str, str]]:
    lines = read_or_empty(f"{directory}/list").split("\n")
    return [(path, name) for path, is_entry, name in (line.partition("\t") for line in lines) if is_entry]
