"""The state directory: which bundle this host has, with which settings, and everything that was placed here.

current                      the bundle last applied (a link into bundles/), all that check and remove need
digest stack settings facts  what it was applied with
placed                       records.py
saved                        foreign.py
undo                         undo.py
packages                     a package transaction, transaction.py
"""

from __future__ import annotations

import glob
import hashlib
import os
import shutil

from . import compiled
from .disk import Disk, create, remove_empty, remove_tree, sync_tree, unlink
from .errors import Failure, attempt
from .events import say
from .host import PROGRAM, Host
from .programs import read_or_empty
from .records import Placed, Record
from .settings import Settings, encode, join

_SPACE = 262144
_OURS = ("digest", "stack", "settings", "facts", "undo", "saved", "packages", "current", "placed", "bundles", "lock")


def open_scratch(host: Host) -> Host:
    """With a scratch directory: below the state directory where that exists, otherwise in the envelope, so that nothing is ever
    written outside the prefix. Everything here works with small files, so without space for them no later step can succeed."""
    temporary = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108
    base = host.state if os.path.isdir(host.state) and os.access(host.state, os.W_OK) else host.envelope or temporary
    scratch = f"{base}/scratch.{os.getpid()}"
    try:
        return _make_scratch(host, scratch)
    except Failure:
        close_scratch(scratch)
        if host.verb not in ("check", "remove"):
            raise
    # A full disk below the state directory must not stop a check, or a removal, which frees space. Anybody may take a name there.
    return _make_scratch(host, f"{temporary}/gpu-fleet-scratch.{os.urandom(8).hex()}")


def _make_scratch(host: Host, scratch: str) -> Host:
    with attempt(f"cannot write below {os.path.dirname(scratch)}"):
        os.mkdir(scratch, 0o700)
        create(f"{scratch}/space", bytes(_SPACE))
        os.truncate(f"{scratch}/space", 0)
    return host._replace(scratch=scratch)


def close_scratch(scratch: str) -> None:
    if scratch:
        shutil.rmtree(scratch, ignore_errors=True)


def clear_scratch(host: Host) -> None:
    """Removes what killed runs left. A running check or plan has a living process."""
    for left in glob.glob(f"{glob.escape(host.state)}/scratch.*"):
        pid = left.rpartition(".")[2]
        if not pid.isdigit() or not os.path.isdir(f"/proc/{pid}"):
            shutil.rmtree(left, ignore_errors=True)


def is_absent(host: Host) -> bool:
    """Was nothing applied here, or is nothing left?"""
    if os.path.lexists(f"{host.state}/current"):
        return False
    return not any(line and not line.startswith("format\t") for line in read_or_empty(f"{host.state}/placed").split("\n"))


def is_intact(bundle: str) -> bool:
    """Is every file as it was when the bundle was made?"""
    lines = read_or_empty(f"{bundle}/SHA256SUMS").splitlines()
    for line in lines:
        expected, _, name = line.partition("  ")
        try:
            with open(f"{bundle}/{name}", "rb") as file:
                if hashlib.sha256(file.read()).hexdigest() != expected:
                    return False
        except OSError:
            return False
    return bool(lines)


def record_bundle(host: Host, disk: Disk, settings: Settings, placed: Placed) -> None:
    """Stores the bundle and the settings that it is applied with. From here on `remove` works, even if the rest is
    interrupted."""
    state = host.state
    with attempt(f"cannot write below {state}"):
        disk.write(f"{state}/settings", encode(settings.text))
        disk.write(f"{state}/facts", encode(join(settings.facts)))
        if host.stack:
            disk.write(f"{state}/stack", encode(f"{host.stack.split()[0]}\n"), 0o644)
        disk.write(f"{state}/digest", f"{settings.digest}\n".encode(), 0o644)
        # The first record of what was placed, which exists as long as a bundle does: without it, the list was lost.
        if not placed.exists:
            lost = (
                "lost" if os.path.isdir(host.at("/opt/gpu-fleet")) else ""
            )  # a removal leaves none, and others have no such directory
            placed.update([Record("format", "1", "host", lost or "-")])
        elif not placed.get("format", "1"):
            placed.update([Record("format", "1", "host", "lost")])
        _store_bundle(host, disk, settings.digest)
        compiled.store(f"{host.bundle}/{PROGRAM}", host.at(f"/{compiled.STORED}"))


def _store_bundle(host: Host, disk: Disk, digest: str) -> None:
    state = host.state
    bundles, copy = f"{state}/bundles", f"{state}/bundles/{digest}"
    if os.path.isdir(f"{state}/current") and os.path.samefile(host.bundle, f"{state}/current"):
        return
    # A damaged copy is replaced.
    sums = read_or_empty(f"{host.bundle}/SHA256SUMS")
    if not is_intact(copy) or read_or_empty(f"{copy}/SHA256SUMS") != sums:
        remove_tree(f"{copy}.new")
        remove_tree(f"{copy}.old")
        # Without the attributes of files in /tmp: SELinux would keep their label (user_tmp_t).
        for directory, _, names in os.walk(host.bundle):
            below = f"{copy}.new{directory[len(host.bundle) :]}"
            os.makedirs(below)
            for name in names:
                source = os.path.join(directory, name)
                create(f"{below}/{name}", source, 0o755 if os.stat(source).st_mode & 0o111 else 0o644)
        sync_tree(f"{copy}.new")
        if os.path.lexists(copy):
            os.rename(copy, f"{copy}.old")
        os.rename(f"{copy}.new", copy)
        disk.will_flush(bundles)
    if not os.path.islink(f"{state}/current") or os.readlink(f"{state}/current") != f"bundles/{digest}":
        unlink(f"{state}/current.new")
        os.symlink(f"bundles/{digest}", f"{state}/current.new")
        os.rename(f"{state}/current.new", f"{state}/current")
        disk.will_flush(state)
    for old in os.listdir(bundles):
        if old != digest:
            remove_tree(f"{bundles}/{old}")


def leave(host: Host, disk: Disk) -> None:
    """Deletes the state directory at the end of a removal: the program's own copy and the list late, since while they exist, an
    interrupted removal can be run again."""
    disk.flush_changes()  # before the records are deleted
    for name in _OURS:
        remove_tree(f"{host.state}/{name}")
        remove_tree(f"{host.state}/{name}.new")
    for left in glob.glob(f"{glob.escape(host.state)}/scratch.*"):
        shutil.rmtree(left, ignore_errors=True)
    remove_empty(host.state)
    # A whole host has these anyway; below a prefix they were created for the state directory.
    if host.prefix:
        remove_empty(host.at("/var/lib"))
        remove_empty(host.at("/var"))
    for directory in (host.state, host.at("/var/lib"), host.prefix):
        if os.path.isdir(directory):
            disk.will_flush(directory)
            break


def tidy(host: Host, has_lock: bool) -> None:
    """An apply that was stopped before its first change leaves no trace, nor does a removal that waited for another one, which
    could not delete this directory with our temporary files in it. One that did not get the lock leaves it: it is another
    run's."""
    close_scratch(host.scratch)
    if host.verb in ("apply", "remove") and not os.path.lexists(f"{host.state}/settings"):
        if has_lock:
            unlink(f"{host.state}/lock")
        remove_empty(host.state)


def write_metrics(host: Host, items: dict[str, int], failed: int, now: int) -> None:
    """The result of a check in Prometheus text format, for node_exporter's textfile collector."""
    lines = [
        "# HELP gpu_fleet_drift_items Differences between this host and its state after the last apply, by part.",
        "# TYPE gpu_fleet_drift_items gauge",
        *(f'gpu_fleet_drift_items{{part="{part}"}} {count}' for part, count in items.items()),
        "# HELP gpu_fleet_check_success 1 when the last check could compare every part.",
        "# TYPE gpu_fleet_check_success gauge",
        f"gpu_fleet_check_success {int(failed == 0)}",
        "# HELP gpu_fleet_check_timestamp_seconds When the last check ended.",
        "# TYPE gpu_fleet_check_timestamp_seconds gauge",
        f"gpu_fleet_check_timestamp_seconds {now}",
    ]
    new = f"{host.state}/metrics.new"
    try:
        create(new, join(lines).encode(), 0o644)
        # Renamed instead of written in place: other users may write in that directory, and we must not follow their links.
        os.rename(new, host.at(host.metrics))
    except OSError as error:
        say(f"the metrics of this check were not written: {error.strerror}")
        unlink(new)
