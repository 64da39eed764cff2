"""Containers whose GPUs a `systemctl daemon-reload` would take.

NVIDIA's hook (`docker run --gpus`) opens the GPUs in the device cgroup of a container that runs already. systemd, where it
manages that cgroup, does not know of it: whenever it reads its unit files again, it applies the devices that the runtime named to
it (DevicePolicy and DeviceAllow of the container's scope), and from then on nvidia-smi in there says `Failed to initialize NVML:
Unknown Error`, until the container is started again. Source: NVIDIA/nvidia-container-toolkit issues 48 and 1227, read 2026-11-28.

Asked in a unit of its own, as packages are installed: the unit of pull mode does not see other users' processes.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import stat
import subprocess
import sys
import time
from typing import Iterator, NamedTuple, Sequence

from .. import output
from .disk import create
from .host import PROGRAM, Host
from .processes import pids
from .programs import lines_of, read_or_empty, run

VERB = "gpu-containers"
OURS = "gpu-fleet-dcgm-exporter"  # dcgm_container.py; starting it again is all that it takes
_WITHIN_S = 60
_TRUE_S = 5.0  # how long what was found is taken for true: a part asks several times
_NAMED = 5  # in a message
_ENGINES = {"docker": "Docker", "libpod": "Podman", "cri-containerd": "containerd", "nerdctl": "containerd", "crio": "CRI-O"}
# Of the cgroup trees, those in which systemd has its units: version 2, its own of version 1, and that of devices.
_UNIT = re.compile(
    r"^\d+:(?:|name=systemd|(?:[^:\n]*,)?devices(?:,[^:\n]*)?):(?:/[^/\n]*\.slice)*/([^/\n]*\.scope)(?:/|$)", re.MULTILINE
)
_NODES = ("nvidia*", "nvidia-caps/*", "nvidia-caps-imex-channels/*", "dri/*", "kfd")


class AtRisk(NamedTuple):
    """`containers`: as people know them, or why that is unknown. `ours`: is our own exporter's among them besides?"""

    containers: Sequence[str]
    ours: bool

    def __str__(self) -> str:
        more = len(self.containers) - _NAMED
        return ", ".join(self.containers[:_NAMED]) + (f" and {more} more" if more > 0 else "")


class GpuContainers:
    """Those of this host, for whatever makes its systemd read unit files."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._risk = AtRisk([], False)
        self._looked_s = -_TRUE_S

    def at_risk(self) -> AtRisk:
        if time.monotonic() - self._looked_s > _TRUE_S:
            self._risk, self._looked_s = _at_risk(self._host), time.monotonic()
        return self._risk


def _at_risk(host: Host) -> AtRisk:
    program = f"{host.scratch}/program.pyz"  # the bundle may lie in a /tmp that nobody else sees
    create(program, f"{host.bundle}/{PROGRAM}")
    unit = ("--quiet", "--collect", "--pipe", "--wait", f"--property=RuntimeMaxSec={_WITHIN_S}", "--property=TimeoutStopSec=5")
    done = run("systemd-run", *unit, sys.executable, "-I", "-S", "-B", program, VERB)
    found = lines_of(done.stdout)
    if not done.ok:
        said = done.stderr.strip().split("\n")[-1]
        found = [f"containers, if any has GPUs: looking for them failed ({said or f'status {done.code}'})"]
    containers = [each for each in found if not each.endswith(f" ({OURS})")]
    return AtRisk(containers, len(containers) < len(found))


def main() -> int:
    """Prints them, one a line."""
    for line in found():
        print(line)
    return 0


def found() -> list[str]:
    processes: dict[str, list[str]] = {}  # by scope
    for pid in pids():
        for scope in set(_UNIT.findall(read_or_empty(f"/proc/{pid}/cgroup"))):
            processes.setdefault(scope, []).append(pid)
    devices = _devices()
    lost = [
        scope
        for scope, allowed in _confined(sorted(processes))
        if any(not _is_allowed(node, allowed, devices) for node in _gpus(processes[scope]))
    ]
    names = _names() if lost else {}
    return [_called(scope, names) for scope in lost]


def _confined(scopes: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Those for which systemd restricts devices, and what it allows, as DeviceAllow has it."""
    for at in range(0, len(scopes), 100):
        asked = ("-p", "Id", "-p", "DevicePolicy", "-p", "DeviceAllow")
        for block in run("systemctl", "show", *asked, "--", *scopes[at : at + 100]).stdout.split("\n\n"):
            values = [line.partition("=") for line in block.strip().split("\n")]
            allowed = [value for name, _, value in values if name == "DeviceAllow" and value]
            policy = next((value for name, _, value in values if name == "DevicePolicy"), "auto")
            if policy in ("strict", "closed") or allowed:
                yield from ((value, allowed) for name, _, value in values if name == "Id")


def _gpus(pids: Sequence[str]) -> set[int]:
    """Device numbers of the GPUs that these processes have in a /dev of their own."""
    found: set[int] = set()
    seen = {_mounts("1")}
    for pid in pids:
        mounts = _mounts(pid)
        if mounts in seen:
            continue
        seen.add(mounts)
        for node in (path for pattern in _NODES for path in glob.iglob(f"/proc/{pid}/root/dev/{pattern}")):
            try:
                status = os.lstat(node)
            except OSError:  # it has ended
                continue
            if stat.S_ISCHR(status.st_mode):
                found.add(status.st_rdev)
    return found


def _mounts(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


def _devices() -> list[tuple[str, int]]:
    """Drivers of character devices and their major numbers."""
    lines = read_or_empty("/proc/devices").partition("\n\n")[0].split("\n")
    return [(name, int(number)) for number, _, name in (line.strip().partition(" ") for line in lines) if number.isdigit()]


def _is_allowed(node: int, allowed: Sequence[str], devices: Sequence[tuple[str, int]]) -> bool:
    for each in allowed:
        what, _, access = each.rpartition(" ")
        if not {"r", "w"} <= set(access):  # runtimes let mknod make all
            continue
        if what.startswith("char-"):
            if any(number == os.major(node) and fnmatch.fnmatchcase(name, what[len("char-") :]) for name, number in devices):
                return True
            if what == "char-*":
                return True
        elif _number(what) == node:
            return True
    return False


def _number(path: str) -> int | None:
    """Of a character device. systemd takes the numbers of /dev/char/MAJOR:MINOR from its name."""
    match = re.fullmatch(r"/dev/char/(\d+):(\d+)", path)
    if match:
        return os.makedev(int(match.group(1)), int(match.group(2)))
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_rdev if stat.S_ISCHR(status.st_mode) else None


def _names() -> dict[str, str]:
    names: dict[str, str] = {}
    for engine in ("docker", "podman"):
        try:
            command = [engine, "ps", "--no-trunc", "--format", "{{.ID}} {{.Names}}"]
            listed = output.run(command, 10, errors=subprocess.DEVNULL).stdout
        except (OSError, subprocess.SubprocessError):
            continue
        lines = (line.partition(" ") for line in listed.decode("utf-8", "replace").splitlines())
        names.update((number, name) for number, _, name in lines)
    return names


def _called(scope: str, names: dict[str, str]) -> str:
    """Text that others chose: of the characters that both engines allow in names."""
    match = re.fullmatch("([a-z-]+)-([0-9a-f]{12,64})\\.scope", scope)
    if not match or match.group(1) not in _ENGINES:
        return re.sub(r"[^A-Za-z0-9_.:@-]", "?", scope)
    name = re.sub(r"[^A-Za-z0-9_.-]", "?", names.get(match.group(2), ""))
    return f"{_ENGINES[match.group(1)]} container {match.group(2)[:12]}{f' ({name})' if name else ''}"
