"""Does somebody else need what our packages brought? Then they stay."""

from __future__ import annotations

import glob
import hashlib
import os
import re
from typing import Sequence

from .facts import ask
from .host import Host, has_our_name
from .manifest import Part
from .programs import run

_IN_USE_TIMEOUT_S = 60
_SERVICE = re.compile(r"^.*/systemd/system/([^/@]*\.(?:service|socket|timer))$", re.MULTILINE)


def used_by(host: Host, part: Part) -> str:
    """What uses the packages, or nothing. The part's own probe finds out; when it fails they are kept."""
    found = (ask(host, module, (part.name,), {}, _IN_USE_TIMEOUT_S) for module in part.keep)
    answers = (each.answer if each.code == 0 else "it is unknown what else uses it" for each in found)
    return "\n".join(answer for answer in answers if answer)


def adopted_by_others(family: str, names: Sequence[str]) -> str:
    """The first sign that somebody else runs or configures what these packages contain, or nothing: a removal would stop their
    unit of the same name, and delete their configuration."""
    for unit in _services(family, names):
        places = [f"{root}/systemd/system/{unit}" for root in ("/etc", "/run", "/usr/local/lib")]
        for file in (*places, *sorted(glob.glob(f"/etc/systemd/system/{glob.escape(unit)}.d/*.conf"))):
            if os.path.isfile(file) and not os.path.islink(file) and not has_our_name(file):
                return f"{file}, which is not ours, runs or changes the same service"
    if family == "debian":
        for line in run("dpkg-query", "--show", "--showformat", "${Conffiles}\n", *names).stdout.split("\n"):
            words = line.split()
            # newconffile: its package was never configured, so whatever is there is not the package's.
            if len(words) > 1 and os.path.isfile(words[0]) and _md5(words[0]) != words[1]:
                return f"{words[0]} is not as the package has it"
    if family == "rhel":
        for line in run("rpm", "--verify", *names).stdout.split("\n"):
            words = line.split()
            if len(words) > 2 and "5" in words[0] and words[1] == "c":
                return f"{words[2]} is not as the package has it"
    return ""


def _md5(path: str) -> str:
    """As dpkg records configuration files."""
    try:
        digest = hashlib.new("md5", usedforsecurity=False)  # type: ignore[call-arg,unused-ignore]
    except TypeError:  # Python 3.8
        digest = hashlib.new("md5")  # noqa: S324
    with open(path, "rb") as file:
        digest.update(file.read())
    return digest.hexdigest()


def _services(family: str, names: Sequence[str]) -> list[str]:
    """The units of these packages."""
    command = ("dpkg-query", "--listfiles") if family == "debian" else ("rpm", "--query", "--list")
    return sorted(set(_SERVICE.findall(run(*command, *names).stdout)))


def stop_services(family: str, names: Sequence[str]) -> None:
    """Not all packages do that on removal: DCGM's host engine would keep running without its files."""
    services = _services(family, names)
    if services:
        run("systemctl", "--quiet", "disable", "--now", *services)


def can_purge(family: str, names: Sequence[str]) -> bool:
    if family == "debian":
        return run("dpkg", "--simulate", "--purge", *names).ok
    return family == "rhel" and run("rpm", "--erase", "--test", *names).ok
