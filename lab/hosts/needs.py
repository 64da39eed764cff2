"""What this machine must have to run hosts: root, and a handful of the distribution's programs."""

from __future__ import annotations

import os
from pathlib import Path

from lab.hosts.errors import HostsError
from lab.toolchain import system
from lab.toolchain.errors import ToolchainError
from lab.toolchain.progress import Progress

PROGRAMS = ("debootstrap", "systemd-nspawn", "ip", "ssh")


def require() -> None:
    """Raises HostsError. As root on a Debian, what is missing is installed instead, and that is said."""
    if os.geteuid() != 0:
        raise HostsError("The lab's hosts are containers with their own network, so this needs root: run it again with sudo.")
    try:
        system.require(PROGRAMS, Progress())
    except ToolchainError as error:
        raise HostsError(str(error)) from None
    if unified_cgroups() is None:
        raise HostsError("The lab's hosts need cgroup v2, and none is mounted below /sys/fs/cgroup on this machine.")


def unified_cgroups() -> Path | None:
    """Where cgroup v2 is mounted: alone, or beside the old tree."""
    places = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
    return next(
        (place for place in places if (place / "cgroup.procs").exists() and (place / "cgroup.controllers").exists()), None
    )
