"""Programs and headers of the Linux distribution: whether they are installed, and the exact command that installs them.

We install them only as root on Debian or Ubuntu, and say so. Elsewhere the user gets the command.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from gpu_fleet.toolchain.errors import ToolchainError
from gpu_fleet.toolchain.progress import Progress

OS_RELEASE = Path("/etc/os-release")

# What is needed -> packages of the Debian and of the Fedora family. Names other than headers are programs on the PATH.
PACKAGES = {
    "gcc": (("gcc", "libc6-dev"), ("gcc", "glibc-devel")),
    "systemd/sd-journal.h": (("libsystemd-dev",), ("systemd-devel",)),
    "shellcheck": (("shellcheck",), ("ShellCheck",)),
    "debootstrap": (("debootstrap",), ("debootstrap",)),
    "systemd-nspawn": (("systemd-container",), ("systemd-container",)),
    "ip": (("iproute2",), ("iproute",)),
    "ssh": (("openssh-client",), ("openssh-clients",)),
    "chromium": (("chromium",), ("chromium",)),
    "mkfs.ext4": (("e2fsprogs",), ("e2fsprogs",)),
    "mkfs.xfs": (("xfsprogs",), ("xfsprogs",)),
    "losetup": (("mount",), ("util-linux",)),
}
# The same program under the names that other distributions and its other builds give it.
ALSO_CALLED = {"chromium": ("chromium-browser", "google-chrome", "google-chrome-stable")}


def missing(names: Iterable[str]) -> list[str]:
    """Those of `names` (keys of PACKAGES) that this machine lacks. Without a compiler, headers count as missing."""
    return [name for name in names if not (_has_header(name) if name.endswith(".h") else program(name))]


def program(name: str) -> str | None:
    """Where a program of PACKAGES is, under any of its names."""
    return next(filter(None, map(shutil.which, (name, *ALSO_CALLED.get(name, ())))), None)


def how_to_install(lacks: Sequence[str]) -> str:
    """What is missing and the command that installs it."""
    names = " and ".join(f"the C header {name}" if name.endswith(".h") else name for name in lacks)
    debian, fedora = ([package for name in lacks for package in PACKAGES[name][family]] for family in (0, 1))
    command = {
        "debian": f"sudo apt-get install {' '.join(debian)}",
        "rhel": f"sudo dnf install {' '.join(fedora)}",
    }.get(_family(), f"install your distribution's packages of {', '.join(debian)}")
    return f"{names} {'is' if len(lacks) == 1 else 'are'} missing: {command}"


def install_as_root(lacks: Sequence[str], progress: Progress) -> bool:
    """Installs them by apt-get as root on Debian or Ubuntu; False elsewhere, and when it failed, which is printed."""
    if not lacks or os.geteuid() != 0 or _family() != "debian" or not shutil.which("apt-get"):
        return False
    packages = [package for name in lacks for package in PACKAGES[name][0]]
    progress.say(f"Running as root on Debian: apt-get install {' '.join(packages)}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for apt in (["apt-get", "update"], ["apt-get", "install", "--yes", "--no-install-recommends", *packages]):
        done = subprocess.run(apt, env=environment, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            progress.say(f"`{' '.join(apt)}` failed: {done.stderr.strip()[-500:]}")
            return False
    return True


def require(names: Iterable[str], progress: Progress) -> None:
    """Raises ToolchainError when some are missing and we cannot install them."""
    lacks = missing(names)
    if lacks and not install_as_root(lacks, progress):
        raise ToolchainError(how_to_install(lacks))


def _has_header(header: str) -> bool:
    compiler = shutil.which("gcc")
    check = [compiler or "", "-E", "-x", "c", "-include", header, "/dev/null"]
    return compiler is not None and subprocess.run(check, capture_output=True, check=False).returncode == 0


def _family() -> str:
    """debian, rhel, or empty for another."""
    try:
        text = OS_RELEASE.read_text()
    except OSError:
        return ""
    words = {word for ids in re.findall(r'^ID(?:_LIKE)?="?([^"\n]*)"?$', text, re.MULTILINE) for word in ids.split()}
    if words & {"debian", "ubuntu"}:
        return "debian"
    return "rhel" if words & {"rhel", "fedora", "centos"} else ""
