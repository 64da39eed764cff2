"""What this machine must have to run hosts: root, and a handful of the distribution's programs."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from gpu_fleet.toolchain import system
from gpu_fleet.toolchain.errors import ToolchainError
from gpu_fleet.toolchain.progress import Progress
from lab.hosts.errors import HostsError

# A booted host takes about 15 of these, and all hosts are the same root; kernels allow 128, which is 8 hosts.
_INOTIFY_INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")
_INOTIFY_ENOUGH = 2048

PROGRAMS = ("debootstrap", "systemd-nspawn", "ip", "ssh")


def require(progress: Progress) -> None:
    """Raises HostsError. As root on a Debian, what is missing is installed instead, and that is said."""
    if os.geteuid() != 0:
        raise HostsError("The lab's hosts are containers with their own network, so this needs root: run it again with sudo.")
    try:
        system.require(PROGRAMS, progress)
    except ToolchainError as error:
        raise HostsError(str(error)) from None
    if unified_cgroups() is None:
        raise HostsError("The lab's hosts need cgroup v2, and none is mounted below /sys/fs/cgroup on this machine.")
    _allow_inotify(progress)


def _allow_inotify(progress: Progress) -> None:
    """Until the next reboot of this machine. Where that is not allowed a few hosts run all the same."""
    allowed = int(_INOTIFY_INSTANCES.read_text())
    if allowed < _INOTIFY_ENOUGH:
        with contextlib.suppress(OSError):
            _INOTIFY_INSTANCES.write_text(str(_INOTIFY_ENOUGH))
            progress.say(
                f"fs.inotify.max_user_instances of this machine raised from {allowed} to {_INOTIFY_ENOUGH}: each host takes 15"
            )


def unified_cgroups() -> Path | None:
    """Where cgroup v2 is mounted: alone, or beside the old tree."""
    places = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
    return next(
        (place for place in places if (place / "cgroup.procs").exists() and (place / "cgroup.controllers").exists()), None
    )
