"""Backups of a monitoring server.

    gpu-fleet-monitoring backup FILE    the data of Mimir, Loki and Grafana as one archive; they are stopped meanwhile
    gpu-fleet-monitoring restore FILE   the same back; the present data is moved beside it

Stopped, because a copy of files that are being written is none. Nothing is lost: agents keep metrics and logs, and send them
later.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Iterator

DATA = Path("/var/lib/gpu-fleet-monitoring")
SERVERS = ("mimir", "loki", "grafana")
# Grafana's release is unpacked again from the archive that is installed.
LEFT_OUT = ("./grafana/release", "./grafana/release.new")


class Refused(Exception):
    """Nothing was changed, or what was is undone. The text is for whoever called."""


def main(arguments: list[str]) -> int:
    verbs = {"backup": backup, "restore": restore}
    if len(arguments) != 2 or arguments[0] not in verbs:
        print("\n".join(line.strip() for line in (__doc__ or "").splitlines()[2:4]), file=sys.stderr)
        return 2
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: sys.exit(1))  # the servers are started again
    try:
        if os.geteuid() != 0:
            raise Refused("must be run as root")
        print(verbs[arguments[0]](Path(arguments[1]).absolute()))
    except Refused as why:
        print(f"gpu-fleet-monitoring: {why}", file=sys.stderr)
        return 1
    return 0


@contextlib.contextmanager
def _stopped() -> Iterator[None]:
    """Without the servers that this host has; they run again at the end, however it ends."""
    units = [f"gpu-fleet-{name}" for name in SERVERS if Path(f"/etc/systemd/system/gpu-fleet-{name}.service").exists()]
    try:
        for unit in units:
            subprocess.run(["systemctl", "stop", unit])
        yield
    finally:
        for unit in units:
            subprocess.run(["systemctl", "start", unit])


def backup(target: Path) -> str:
    if not DATA.is_dir():
        raise Refused(f"{DATA} does not exist: this host is no monitoring server")
    if target.exists():
        raise Refused(f"{target} exists")
    partial = target.with_name(f"{target.name}.partial")
    with _stopped():
        try:
            excluded = [f"--exclude={path}" for path in LEFT_OUT]
            partial.touch(mode=0o600)
            with partial.open("wb") as file:
                subprocess.run(["tar", "-cz", "-C", DATA, *excluded, "."], stdout=file, check=True)
                os.fsync(file.fileno())
        except (OSError, subprocess.CalledProcessError):
            with contextlib.suppress(OSError):
                partial.unlink()
            raise Refused(f"cannot write {target}") from None
        partial.replace(target)
    return f"{target}: {target.stat().st_size} bytes"


def restore(source: Path) -> str:
    if not os.access(source, os.R_OK):
        raise Refused(f"{source} cannot be read")
    if not DATA.is_dir():
        raise Refused(f"{DATA} does not exist: bring this host to the stack first (role: monitoring)")
    if not _is_whole(source):
        raise Refused(f"{source} is damaged, or no backup")
    new = DATA.with_name(f"{DATA.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o755)
    new.chmod(0o755)
    if subprocess.run(["tar", "-xzf", source, "--no-same-owner", "-C", new]).returncode != 0:
        shutil.rmtree(new, ignore_errors=True)
        raise Refused(f"{source} cannot be unpacked: nothing was changed")
    kept = DATA.with_name(f"{DATA.name}.before-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
    with _stopped():
        for name in SERVERS:
            if (new / name).is_dir():
                user = f"gpu-fleet-{name}"
                subprocess.run(["chown", "-R", f"{user}:{user}", new / name], check=True)
        kept.mkdir(mode=0o755)
        _exchange(kept, new)
    new.rmdir()
    return f"restored from {source}; the former data is in {kept}: remove it when the restored data is right"


def _exchange(kept: Path, new: Path) -> None:
    """Moves the data to `kept` and `new` in its place, or neither. Not the directory itself, which may be a mount point."""
    moved: list[tuple[Path, Path]] = []
    try:
        for place, to in ((DATA, kept), (new, DATA)):
            for entry in sorted(place.iterdir()):
                shutil.move(str(entry), str(to / entry.name))
                moved.append((entry, to / entry.name))
    except BaseException as error:
        for before, now in reversed(moved):
            shutil.move(str(now), str(before))
        if isinstance(error, OSError):
            raise Refused(f"{error}: the data is as it was") from None
        raise


def _is_whole(archive: Path) -> bool:
    try:
        with tarfile.open(archive, "r:gz") as tar:
            return any(tar)
    except (OSError, EOFError, tarfile.TarError):
        return False
