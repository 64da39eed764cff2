"""Slurm's own programs on this host, wherever a site has installed them."""

from __future__ import annotations

import functools
import glob
import os
import pwd
import re
import socket
import subprocess
import sys
import syslog
from pathlib import Path
from typing import Iterator, Mapping, Sequence

from . import output
from .files import text_of
from .trust import is_placed_by, is_process_of_root

WITHIN_S = 10  # of each command; Slurm ends a health check after 60 s
# Of sites that build Slurm themselves; slurmd starts prologs and health checks with a PATH that need not have them.
_PLACES = ("/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin", "/opt/slurm/bin", "/opt/slurm/sbin")
FETCHED = "/run/slurm/conf/slurm.conf"  # what slurmd has from the controller
UNITS = (
    *("/etc/default/slurmd", "/etc/sysconfig/slurmd", "/etc/systemd/system/slurmd.service"),
    *(f"{place}/systemd/system/slurmd.service.d/*.conf" for place in ("/etc", "/run", "/usr/lib")),
)
_SET = r"""^\s*(?:export\s+|Environment=\s*)?["']?SLURM_CONF=["']?(/[^\s"']+)"""
_HOSTS = re.compile(r"((?:[^,\[]|\[[^\]]*\])+)(?:,|$)")


_UNIT = "/system.slice/slurmd.service"
_SAID = 300  # characters of one error
_MOST_BYTES = 128 << 20  # squeue of 100,000 jobs prints some 20 MB


class SlurmError(Exception):
    """Why Slurm did not answer: one line, cut, without control characters, since sites add what they like to Slurm's messages."""

    def __init__(self, why: str) -> None:
        line = " ".join("".join(letter if letter.isprintable() else " " for letter in why[: 10 * _SAID]).split())
        super().__init__(line if len(line) <= _SAID else f"{line[: _SAID - 3]}...")


def run(program: str, *arguments: str, within_s: float = WITHIN_S, fine: str = "") -> str:
    """What it prints; what it prints of errors, where it fails or prints nothing else. Raises SlurmError where it fails, unless
    what it says then matches `fine`."""
    environment = {**os.environ, **_configuration()}
    try:
        done = output.run((_path(program), *arguments), within_s, _MOST_BYTES, environment=environment)
    except (OSError, subprocess.SubprocessError) as error:
        raise SlurmError(f"{program}: {error}") from None
    said = done.stdout if done.returncode == 0 and done.stdout.strip() else done.stdout + done.stderr
    text = said.decode("utf-8", "replace")
    if done.returncode != 0 and not (fine and re.search(fine, text, re.MULTILINE)):
        words = [program, *(word for word in arguments if not word.startswith("--"))][:2]
        raise SlurmError(f"{' '.join(words)}: {text.strip()}")
    return text


def node() -> str:
    """Its name, from Slurm where Slurm starts us."""
    return os.environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]


def printable(text: str, most: int) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text[:most])


def log(program: str, text: str) -> None:
    """Also to syslog: slurmd drops what its programs print (seen with 22.05)."""
    print(f"{program}: {text}", file=sys.stderr)
    syslog.openlog(program)
    syslog.syslog(syslog.LOG_WARNING, text)


def columns(names: Sequence[str]) -> str:
    """A size of 0 neither cuts nor fills; what people write comes last, as it may have the separator in it."""
    return "--Format=" + ",".join(f"{name}:0|" for name in names)


def slurmd() -> tuple[int, str]:
    """The running daemon: its process, and when that started, in ticks since the boot. Raises SlurmError."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if (directory / "comm").read_text().strip() == "slurmd" and is_process_of_root(str(directory)):
                began = (directory / "stat").read_text().rpartition(")")[2].split()[19]
                is_units = _UNIT in (directory / "cgroup").read_text()
                found.append((not is_units, int(began), int(directory.name)))
        except (OSError, ValueError):
            continue
    if not found:
        raise SlurmError("slurmd does not run on this host")
    _, since, pid = min(found)
    return pid, str(since)


def expanded(names: str) -> Iterator[str]:
    """gpu-[1-3,07],login: the names in such a list."""
    for name in _HOSTS.findall(names):
        found = re.match(r"([^\[]*)\[([^\]]*)\](.*)", name)
        if not found:
            yield name
            continue
        for part in found[2].split(","):
            first, _, last = part.partition("-")
            for number in range(int(first), int(last or first) + 1):
                for rest in expanded(found[3]) if found[3] else [""]:
                    yield f"{found[1]}{number:0{len(first)}d}{rest}"


def _path(program: str) -> str:
    for directory in (*os.environ.get("PATH", "").split(":"), *_PLACES, *_beside_slurmd()):
        path = Path(directory, program)
        if directory.startswith("/") and path.is_file() and os.access(path, os.X_OK):
            return str(path)
    raise SlurmError(f"{program}: this host has no such program")


def _beside_slurmd() -> Iterator[str]:
    program = Path(*_command_of_slurmd()[:1])
    if program.is_absolute() and is_placed_by(_trusted(), program):
        yield str(program.parent)
        yield str(program.parent.parent / "bin")


def _trusted() -> Sequence[int]:
    """Root runs what is found there, with that configuration, and a process chooses its name and arguments itself."""
    try:
        return (0, pwd.getpwnam("slurm").pw_uid)
    except KeyError:
        return (0,)


def _configuration() -> Mapping[str, str]:
    """SLURM_CONF as it is for slurmd, where that has its configuration from another place than the default: from the controller
    (configless), with -f, or from its unit. `slurmd -G` by itself would look for a controller by DNS for ever."""
    if "SLURM_CONF" in os.environ:
        return {}
    arguments = " ".join(_command_of_slurmd()[1:])
    if re.search(r"--conf-server\b", arguments) and Path(FETCHED).exists():
        return {"SLURM_CONF": FETCHED}
    texts = (text_of(Path(path)) for place in UNITS for path in sorted(glob.glob(place)))  # noqa: PTH207
    said = re.search(r"(?:^| )-f ?(/\S+)", arguments)
    if not said or not is_placed_by(_trusted(), Path(said[1])):
        said = next(filter(None, (re.search(_SET, text, re.MULTILINE) for text in texts)), None)
    return {"SLURM_CONF": said[1]} if said else {}


@functools.lru_cache(maxsize=None)
def _command_of_slurmd() -> Sequence[str]:
    """Not /proc/PID/exe and environ: services of ours may not read those of a process with more capabilities."""
    try:
        return text_of(Path(f"/proc/{slurmd()[0]}/cmdline")).rstrip("\0").split("\0")
    except SlurmError:
        return ()
