"""The first sign that this host runs containers or guests, or is set up to, by something that we did not install.

A second runtime beside it may change its units, configuration and network. A stopped, half installed or unconfigured runtime
counts too: what matters is that somebody set it up.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
from pathlib import Path
from typing import AbstractSet, Iterator, Sequence

from ..files import text_of
from ..trust import is_placed_by, is_process_of_root
from .host import Host
from .known_runtimes import RUNTIMES, Runtime

PACKAGES_S = 20  # for the package manager to list what is installed

_MOST_NAME = 15  # characters of a process's name
BRIDGE = "bridge"  # among the names that are asked for
_UNIT_PLACES = (
    *("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system"),
    *("/lib/systemd/system", "/run/systemd/generator"),
)
_PROGRAM_PLACES = (
    *("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/bin", "/sbin", "/snap/bin"),
    *("/opt/bin", "/opt/*/bin", "/opt/*", "/var/lib/rancher/*/bin"),
)


def first_sign(host: Host, *names: str) -> str:
    """Of these runtimes, or of any and of network bridges: what was found, and where; empty where there is none."""
    wanted = [runtime for runtime in RUNTIMES if not names or runtime.name in names]
    ours = Ours(host)
    signs = (sign for look in (_processes, _files, _packages) for sign in look(host, wanted, ours))
    return next(signs, "") or (next(_bridges(host), "") if not names or BRIDGE in names else "")


class Ours:
    """What we have installed and placed, which is no sign of another runtime."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.packages = _our_packages(host)
        self._files: AbstractSet[str] | None = None

    def has(self, path: str) -> bool:
        """Is this path of a package of ours, or placed by us? /usr/lib and /lib may be the same directory."""
        if not path:  # of a process that has ended
            return False
        inside = path[len("/usr") :] if path.startswith("/usr/") else path
        if self._files is None:
            self._files = self._files_of_packages()
        if inside in self._files:
            return True
        # What a runtime of ours has stored; and networks that Podman makes and leaves.
        if inside.startswith("/var/lib/docker/") and "docker.io" in self.packages:
            return True
        if inside.startswith("/var/lib/containers/") and "podman" in self.packages:
            return True
        if inside.startswith("/etc/cni/net.d/") and "podman" in inside:
            return True
        return self._host.has_placed("file", path)  # Docker's settings

    def _files_of_packages(self) -> AbstractSet[str]:
        if not self.packages:
            return frozenset()
        names = sorted(self.packages)
        # Both fail, with the files of the others, where one of the packages is gone.
        listed = [
            self._host.ask(*query, *names, within_s=PACKAGES_S).text
            for query in (("dpkg-query", "--listfiles"), ("rpm", "--query", "--list"))
        ]
        return {re.sub("^/usr/", "/", line) for text in listed for line in text.splitlines()}


def _our_packages(host: Host) -> AbstractSet[str]:
    """Those whose transaction has not been settled yet are ours too."""
    placed = re.findall(r"^package\t([^\t]*)\t", text_of(host.state / "placed"), re.MULTILINE)
    return {*placed, *re.findall(r"^(\S*) - ", text_of(host.state / "packages/planned"), re.MULTILINE)}


def _processes(host: Host, wanted: Sequence[Runtime], ours: Ours) -> Iterator[str]:
    running = []
    for directory in sorted(glob.glob(f"{glob.escape(host.root)}/proc/[0-9]*")):  # noqa: PTH207  of hundreds of processes
        name = text_of(f"{directory}/comm").rstrip("\n")
        # Anybody may give a process any name; no runtime has one with other characters.
        if re.fullmatch(r"[A-Za-z0-9._-]+", name):
            running.append((directory, name))
    for runtime in wanted:
        for pattern in runtime.processes.split():
            for directory, name in running:
                is_one = fnmatch.fnmatchcase(name, pattern) and _is_real(host, directory, pattern)
                if is_one and not ours.has(_program(host, directory)):
                    yield f"{runtime.name} (process {name})"


def _is_real(host: Host, directory: str, pattern: str) -> bool:
    """Root runs it, or a user runs what root has installed, as rootless engines are. Any user may give a program any name."""
    if is_process_of_root(directory):
        return True
    program = _program(host, directory)
    if not program or not fnmatch.fnmatchcase(program.rpartition("/")[2][:_MOST_NAME], pattern):
        return False
    try:  # in a mount namespace of its own the path may be that of another file
        is_here = os.path.samestat(os.stat(f"{directory}/exe"), os.stat(host.root + program))  # noqa: PTH116
    except OSError:
        return False
    return is_here and is_placed_by((0,), Path(host.root + program))


def _program(host: Host, directory: str) -> str:
    """Empty for a process that has ended."""
    try:
        program = os.readlink(f"{directory}/exe")
    except OSError:
        return ""
    return program[len(host.root) :] if host.root and program.startswith(f"{host.root}/") else program


def _files(host: Host, wanted: Sequence[Runtime], ours: Ours) -> Iterator[str]:
    for runtime in wanted:
        for place, patterns in ((_UNIT_PLACES, runtime.units), (_PROGRAM_PLACES, runtime.programs), (("",), runtime.paths)):
            for pattern in patterns.split():
                for directory in place:
                    path = f"{directory}/{pattern}" if directory else pattern
                    yield from _found(host, runtime.name, path, ours, is_unit=place is _UNIT_PLACES)
    for runtime in wanted:
        for home in _homes(host) if runtime.in_homes else ():
            for pattern in runtime.in_homes.split():
                for path in _not_empty(host, f"{home}/{pattern}"):
                    yield f"{runtime.name} ({path})"


def _found(host: Host, name: str, pattern: str, ours: Ours, *, is_unit: bool = False) -> Iterator[str]:
    for found in sorted(glob.glob(glob.escape(host.root) + pattern)):  # noqa: PTH207  its own has no links to nowhere
        path = found[len(host.root) :].rstrip("/")
        if ours.has(path):
            continue
        if is_unit:
            where = f"unit {path.rpartition('/')[2]}"
        else:  # what a directory holds has names that its users chose
            where = path.rpartition("/")[0] if pattern.rstrip("/").endswith("/*") else path
        yield f"{name} ({where})"


def _not_empty(host: Host, pattern: str) -> Iterator[str]:
    """What exists; with `/*` at the end the directories that are not empty. They are not listed: their users may have put any
    number of files there."""
    directories = pattern.endswith("/*")
    for path in sorted(glob.glob(glob.escape(host.root) + (pattern[:-2] if directories else pattern))):  # noqa: PTH207
        try:
            if not directories:
                yield path[len(host.root) :]
                continue
            with os.scandir(path) as entries:
                if any(True for _ in entries):
                    yield path[len(host.root) :]
        except OSError:
            continue


def _homes(host: Host) -> Iterator[str]:
    """As patterns. Not all that LDAP lists: looking at each of their homes would mount it."""
    yield "/home/*"
    fields = (line.split(":") for line in host.text("/etc/passwd").splitlines())
    for home in sorted({of_user[5] for of_user in fields if len(of_user) > 5}):
        if re.match("/.", home):
            yield glob.escape(home)


def _packages(host: Host, wanted: Sequence[Runtime], ours: Ours) -> Iterator[str]:
    debian = host.ask("dpkg-query", "--show", "--showformat", "${db:Status-Status} ${Package}\\n", within_s=PACKAGES_S).text
    rpm = host.ask("rpm", "--query", "--all", "--queryformat", "%{NAME}\\n", within_s=PACKAGES_S).text
    present = [line.partition(" ")[2] for line in debian.splitlines() if not re.match("(not-installed|config-files) ", line)]
    present += rpm.splitlines()
    for runtime in wanted:
        for pattern in runtime.packages.split():
            for package in fnmatch.filter(present, pattern):
                if package not in ours.packages:
                    yield f"{runtime.name} (package {package})"


def _bridges(host: Host) -> Iterator[str]:
    """A bridge is there for guests, whoever runs them: what it forwards would pass through the runtime's firewall rules."""
    for bridge in sorted(host.path("/sys/class/net").glob("*/bridge")):
        ports = sorted(port.name for port in bridge.parent.glob("brif/*"))
        if (bridge.parent.name, ports) != ("docker0", []):  # that stays when a Docker goes
            yield f"a network bridge ({bridge.parent.name}{' with ' if ports else ''}{' '.join(ports)})"
