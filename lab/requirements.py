"""What `make test` needs of a machine, all checked at once before anything runs: `python -m lab.requirements`.

Programs of the distribution are installed as root on Debian, as everywhere. Ports are not checked: tests take free ones.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from gpu_fleet.toolchain import PROGRAMS as TOOLS
from gpu_fleet.toolchain import Cache, system
from gpu_fleet.toolchain.locate import located
from gpu_fleet.toolchain.progress import Progress
from lab.gpu.amd import real as amd_tools
from lab.gpu.nvml import real as nvidia_smi
from lab.hosts.needs import unified_cgroups
from lab.mirrors import mirror

_OF_HOSTS: Final = ("debootstrap", "systemd-nspawn", "ip", "ssh", "mkfs.ext4", "mkfs.xfs", "losetup")
PROGRAMS: Final = ("shellcheck", "chromium", "gcc", *_OF_HOSTS)
# On 2026-11-22 the cache had 3.4 GB of tools, hosts' roots and Pulumi's home, and three runs 2.6 GB of temporary files (du). Six
# processes with Mimir, Loki, Pulumi and a few hosts each took 8 GiB of memory (free, 2026-11-23). The disk space for builds is an
# estimate: Go's caches hold the modules of Alloy.
_CACHE_GB, _BUILDS_GB, _TEMPORARY_GB, _MEMORY_GIB = 7, 15, 5, 8
_REACH_S = 10
# Each in namespaces of its own, so that nothing stays. What it shows -> the command, and how to get it.
_KERNEL: Final = {
    "network namespaces, bridges and veth pairs": (
        ("unshare", "--net", "sh", "-c", "ip link add name lab0 type bridge && ip link add name lab1 type veth peer name lab2"),
        "use a kernel with these modules (modprobe bridge veth); in a container, add the capability NET_ADMIN",
    ),
    "mounts, and overlay file systems": (
        (
            *("unshare", "--mount", "--propagation", "private", "sh", "-euc"),
            'mount -t tmpfs t "$1" && cd "$1" && mkdir l u w m && mount -t overlay o -o lowerdir=l,upperdir=u,workdir=w m',
            *("sh", "{scratch}"),
        ),
        "use a machine or a VM, or a container with the capability SYS_ADMIN and without a confining AppArmor profile",
    ),
    "loop devices": (("losetup", "--find"), "modprobe loop; in a container, pass /dev/loop-control and the loop devices in"),
}


def lacks(progress: Progress) -> list[str]:
    """A line for each thing that is missing, with what to do."""
    found = list(_of_root())
    try:
        system.require(PROGRAMS, progress)
    except system.ToolchainError as error:
        found.append(str(error))
    return [*found, *_of_kernel(), *_of_room(), *_of_sources()]


def _of_root() -> Iterator[str]:
    if os.geteuid() != 0:
        yield "root: tests boot systemd hosts and cut their power. Run it as: sudo --preserve-env=PATH make test"


def _of_kernel() -> Iterator[str]:
    if unified_cgroups() is None:
        yield "cgroup v2 below /sys/fs/cgroup: boot with systemd.unified_cgroup_hierarchy=1; in a container, mount it read-write"
    if os.geteuid() != 0:
        return  # nothing below can be tried without it
    with tempfile.TemporaryDirectory() as scratch:
        for what, (command, fix) in _KERNEL.items():
            try:
                done = subprocess.run(
                    [part.format(scratch=scratch) for part in command], capture_output=True, text=True, timeout=20, check=False
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                reason = str(error)
            else:
                if done.returncode == 0:
                    continue
                reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            yield f"{what}: {fix} ({reason})"


def _of_room() -> Iterator[str]:
    cache = next(place for place in (Cache().root, *Cache().root.parents) if place.is_dir())
    built = [name for name, program in TOOLS.items() if program.go and not located(name)]
    need = _CACHE_GB + (_BUILDS_GB if built else 0) if built or not (Cache().root / "hosts").is_dir() else 0
    for place, gigabytes, variable in ((cache, need, "XDG_CACHE_HOME"), (Path(tempfile.gettempdir()), _TEMPORARY_GB, "TMPDIR")):
        free = shutil.disk_usage(place).free / 1e9
        if free < gigabytes:
            yield f"disk space: {place} has {free:.1f} GB free, {gigabytes} GB are needed; free some, or set {variable}"
    available = _memory_gib()
    if available < _MEMORY_GIB:
        yield f"memory: {available:.1f} GiB are available, {_MEMORY_GIB} GiB are needed; stop programs, or use a larger machine"


def _memory_gib() -> float:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 2**20
    return 0.0


def _of_sources() -> Iterator[str]:
    """Only what is still to be fetched: a machine that has everything needs no network. Small packages are fetched at once."""
    if not (Cache().root / "hosts").is_dir():
        url = mirror("debian", "bookworm")
        if reason := unreachable(f"{url}/dists/bookworm/InRelease"):
            yield f"a Debian mirror, from which the hosts are made: {url} {reason}; set a mirror in /etc/apt, or https_proxy"
    if not all(located(name) for name in TOOLS):
        github = unreachable("https://github.com")
        proxy = (
            subprocess.run(["go", "env", "GOPROXY"], capture_output=True, text=True, check=False).stdout
            if shutil.which("go")
            else ""
        )
        module_proxy = proxy.strip().split(",")[0].split("|")[0]
        if github and (not module_proxy or (reason := unreachable(module_proxy))):
            yield (
                f"a source of the tools: github.com {github}, and "
                + (f"Go's module proxy {reason}" if module_proxy else "there is no Go to build them with")
                + "; allow one of them, or set https_proxy (gpu_fleet/toolchain/README.md)"
            )
    for name, tool in (("NVIDIA's nvidia-smi", nvidia_smi), ("AMD's rocm-smi and amd-smi", amd_tools)):
        if reason := tool.lacks():
            yield f"{name}, which collectors are tested on: {reason}"


def unreachable(url: str) -> str:
    """Why a server gives no answer; empty when it does."""
    if not url.startswith(("http://", "https://")):
        return ""
    try:
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=_REACH_S).close()  # noqa: S310 - of a setting
    except urllib.error.HTTPError as error:
        return f"answers {error.code}" if error.code >= 500 else ""
    except (OSError, ValueError) as error:
        return f"does not answer ({getattr(error, 'reason', error)})"
    return ""


def main(check: Callable[[Progress], list[str]] = lacks) -> int:
    if not (found := check(Progress(sys.stderr))):
        return 0
    print(
        f"make test cannot run on this machine; {len(found)} thing{'s are' if len(found) > 1 else ' is'} missing:",
        file=sys.stderr,
    )
    for number, line in enumerate(found, 1):
        print(f"{number}. {line}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
