"""A backend in a directory that a killed run left unreadable, or locked: repaired, or explained.

Pulumi keeps the checksum and type of each file in a second one, FILE.attrs, which it writes in place: killed at that moment it
leaves an empty one, and from then on every command ends in `EOF`. The state itself is whole, since it is renamed into place
(gocloud.dev v0.46, blob/fileblob). The lock of a run, a file with its process and its machine, stays when the run is killed
(pulumi 3.259.0, pkg/backend/diy/lock.go). Without FILE.attrs Pulumi reads FILE as it is. What is renamed is not synced before, so
a power failure may leave an empty state; the one before it is in FILE.bak.
"""

from __future__ import annotations

import glob
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import yaml

from gpu_fleet.stackfile.naming import PROJECT

# Any other, such as nfs4, cifs, lustre, virtiofs or fuse.sshfs, several machines may have mounted.
_LOCAL: Final = frozenset(["ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "jfs", "bcachefs", "tmpfs", "ramfs", "overlay"])
_WRITTEN_S: Final = 1.0  # another run may be writing one right now


def repaired(error: str) -> list[Path]:
    """The files that were in the way of a command that ended with `error`; they are deleted now."""
    directory = _directory() if error.endswith("EOF") else None
    if directory is None:
        return []
    found = _cut(directory)
    if found:
        time.sleep(_WRITTEN_S)  # not by the file's age: the clock of a shared directory may be another one
        found = [file for file in _cut(directory) if file in found]
    for file in found:
        file.unlink(missing_ok=True)
    return found


def _cut(directory: Path) -> list[Path]:
    return [file for file in directory.rglob("*.attrs") if _is_cut(file)]


def emptied(stack: str) -> str:
    """How to restore a stack whose state is an empty file; empty where it is none."""
    directory = _directory()
    name = stack.rpartition("/")[2]
    for file in directory.glob(f"stacks/**/{glob.escape(name)}.json") if directory else ():
        if file.stat().st_size == 0:
            return (
                f"the state of {stack} is an empty file, as after a power failure while it was saved: {file}\n"
                f"To continue with the state before that, whose hosts are found as they are: cp '{file}.bak' '{file}'"
            )
    return ""


def released(stack: str) -> list[str]:
    """Deletes the locks of runs that were killed on this machine, and says whose they were. Within a container nothing is known
    of the processes beside it, and in a directory that machines share another one may have this one's name: there, and for other
    machines, `pulumi cancel` is left to whoever knows."""
    directory = _directory()
    if directory is None or not _sees_every_process():
        return []
    found = []
    for file, lock in _locks(directory, stack):
        try:
            pid, host, since = int(lock["pid"]), lock["hostname"], str(lock["timestamp"])
        except (ValueError, KeyError, TypeError):
            continue
        if host == socket.gethostname() and not _is_pulumi(pid) and _file_system(directory) in _LOCAL:
            for each in (file, file.with_name(f"{file.name}.attrs")):
                each.unlink(missing_ok=True)
            found.append(f"process {pid} of {since}")
    return found


def _sees_every_process() -> bool:
    try:
        return Path("/proc/1/comm").read_text().strip() in ("systemd", "init")
    except OSError:
        return False


def holder(stack: str) -> str:
    """Of a lock of this stack, for people; empty where there is none, or the backend is no directory."""
    directory = _directory()
    for _, lock in _locks(directory, stack) if directory else ():
        of = {name: str(lock.get(name, "?")) for name in ("pid", "username", "hostname", "timestamp")}
        return f"process {of['pid']} of {of['username']}@{of['hostname']}, since {of['timestamp']}"
    return ""


def _locks(directory: Path, stack: str) -> Iterator[tuple[Path, dict[str, Any]]]:
    for file in directory.glob(f"locks/organization/{PROJECT}/{glob.escape(stack.rpartition('/')[2])}/*.json"):
        try:
            lock = json.loads(file.read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(lock, dict):
            yield file, lock


def _file_system(path: Path) -> str:
    """Its type, as in mountinfo; the last mount at a place hides those before it."""
    path, found = path.resolve(), ("", "")
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        at, _, rest = line.partition(" - ")
        point = at.split()[4].encode().decode("unicode_escape")
        if path.is_relative_to(point) and len(point) >= len(found[0]):
            found = (point, rest.split()[0])
    return found[1]


def _is_pulumi(pid: int) -> bool:
    """Another program may have the number by now."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().startswith("pulumi")
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _is_cut(file: Path) -> bool:
    try:
        json.loads(file.read_bytes())
    except ValueError:
        return True
    except OSError:
        return False
    return False


def _directory() -> Path | None:
    """Where the backend keeps its files; None where it is no directory. As pulumi chooses it, which cannot be asked: it reads the
    backend before it answers."""
    url = os.environ.get("PULUMI_BACKEND_URL") or _of_project() or _logged_in()
    if not url.startswith("file://"):
        return None
    path = Path(unquote(url.removeprefix("file://").partition("?")[0])).expanduser() / ".pulumi"
    return path if path.is_dir() else None


def _of_project() -> str:
    try:
        backend = (yaml.safe_load(Path("Pulumi.yaml").read_text()) or {}).get("backend") or {}
    except (OSError, ValueError, yaml.YAMLError):
        return ""
    return str(backend.get("url") or "")


def _logged_in() -> str:
    usual = os.environ.get("PULUMI_CREDENTIALS_PATH") or os.environ.get("PULUMI_HOME") or Path.home() / ".pulumi"
    try:
        return str(json.loads(Path(usual, "credentials.json").read_text()).get("current") or "")
    except (OSError, ValueError):
        return ""
