"""What the next person needs to know of a broken host, collected before a reset or a reboot destroys it.

One archive with what the driver's tools, the kernel log and the collectors say, and the digest of each file in MANIFEST.json. It
takes at most 90 s, also while a driver hangs, holds at most 64 MiB, and appears under its name only when it is whole. Nothing of
our own configuration is read, so no secret is in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import sys
import tarfile
import time
from pathlib import Path
from typing import Iterator, Mapping, NamedTuple, Sequence

from . import page
from .files import bytes_of_regular, text_of
from .tools import CollectError, Tools

MOST_S = 80  # of all together; what is left is packing
EACH_S = 20
MOST_BYTES = 64 << 20
MOST_OF_A_FILE = 8 << 20
LINES = 20000  # of the kernel log
# Programs put passwords into their titles, sites into the kernel's command line. A match begins with a word and is short: a file
# of one line must not cost the time of all.
_NAMED = re.compile(
    rb"(?i)(?:passw(?:or)?d|passphrase|secret|token(?!s)|(?:api|access)[-_]?key|credential)"
    rb"""[\w.-]{0,32}["']?(\s?[=:]\s?|\s)["']?([^\s<>"'&]{1,4096})"""
)
_IN_URL = re.compile(rb"://[^\s/:@]{1,64}:([^\s/@<>]{1,256})@")
_REMOVED = b"(removed)"


class Source(NamedTuple):
    """`file`: its name in the archive. `command`: the first word is looked up; a host without that tool has no such file."""

    file: str
    command: tuple[str, ...]
    within_s: float = EACH_S


SOURCES = (
    Source("nvidia-smi-q.xml", ("nvidia-smi", "-q", "-x")),
    Source("nvidia-smi-nvlink.txt", ("nvidia-smi", "nvlink", "-s")),
    Source("dcgmi-health.txt", ("dcgmi", "health", "-g", "0", "-c")),
    Source("amd-smi-static.txt", ("amd-smi", "static")),
    Source("amd-smi-metric.txt", ("amd-smi", "metric")),
    Source("amd-smi-bad-pages.txt", ("amd-smi", "bad-pages")),
    Source("kernel.log", ("journalctl", "--dmesg", "--no-pager", "--output=short-iso-precise", f"--lines={LINES}")),
    Source(
        "kernel-before.log", ("journalctl", "--dmesg", "--boot=-1", "--no-pager", "--output=short-iso-precise", "--lines=5000")
    ),
    Source("units.txt", ("systemctl", "list-units", "--failed", "--no-pager", "--plain")),
    Source("lspci.txt", ("lspci", "-vvv", "-nn")),
    Source("ibstat.txt", ("ibstat",)),
    Source("processes.txt", ("ps", "-eo", "pid,ppid,user,stat,wchan:20,lstart,comm")),
    Source("slurm-node.txt", ("scontrol", "show", "node", os.uname().nodename.partition(".")[0])),
    Source("slurm-jobs.txt", ("scontrol", "listpids")),
    # Last: it may take as long as all others. In safe mode it does not touch what hangs.
    Source("nvidia-bug-report.log", ("nvidia-bug-report.sh", "--safe-mode", "--output-file", "/dev/stdout"), 30),
)
FILES = ("/etc/os-release", "/proc/version", "/proc/cmdline", "/proc/driver/nvidia/version", "/proc/meminfo", "/proc/uptime")


class Collection:
    """Files of one archive, by name, within the limits."""

    def __init__(self, reason: str) -> None:
        self.began = time.time()
        self.files: dict[str, bytes] = {}
        self.notes: list[dict[str, object]] = []
        self.reason = reason

    def add(self, name: str, data: bytes, **note: object) -> None:
        room = MOST_BYTES - (1 << 20) - sum(map(len, self.files.values()))
        room = max(0, min(MOST_OF_A_FILE, room))
        kept = without_secrets(data[:room])[:room]
        self.files[name] = kept
        digest = hashlib.sha256(kept).hexdigest()
        self.notes.append({"file": name, "sha256": digest, "bytes": len(kept), "cut": len(kept) < len(data), **note})

    def manifest(self) -> bytes:
        host = os.uname()
        about = {
            "host": host.nodename,
            "kernel": host.release,
            "began": int(self.began),
            "seconds": round(time.time() - self.began, 1),
        }
        return json.dumps({**about, "reason": self.reason, "files": self.notes}, indent=1).encode() + b"\n"


def without_secrets(data: bytes) -> bytes:
    """Values of what is named like one: password=x, --api-key x, scheme://user:x@host."""

    def named(found: re.Match[bytes]) -> bytes:
        whole, begin = found[0], found.start()
        is_option = re.search(rb"--[\w-]*$", data[max(0, begin - 40) : begin])
        return whole[: found.start(2) - begin] + _REMOVED if found[1].strip() or is_option else whole

    return _IN_URL.sub(lambda found: found[0][: found.start(1) - found.start()] + _REMOVED + b"@", _NAMED.sub(named, data))


def collect(found: Collection, tools: Tools, prefix: str, environment: Mapping[str, str]) -> None:
    for path in FILES:
        text = text_of(Path(path))
        if text:
            found.add(path.strip("/").replace("/", "-"), text.encode())
    for name, data in _of_the_collectors(prefix):
        found.add(name, data)
    for name, key in (("exporter.prom", "GPU_FLEET_GPU_EXPORTER_LISTEN"), ("alloy.prom", "GPU_FLEET_ALLOY_LISTEN")):
        listen = environment.get(key)
        if listen:
            try:
                found.add(name, page.metrics(listen, 5).encode())
            except (OSError, ValueError) as error:
                found.add(name, b"", failed=str(error))
    for source in SOURCES:
        left_s = MOST_S - (time.time() - found.began)
        if left_s < 1:
            found.add(source.file, b"", failed="no time was left")
            continue
        _ask(found, tools, source, min(source.within_s, left_s))


def _of_the_collectors(prefix: str) -> Iterator[tuple[str, bytes]]:
    for path in sorted(Path(prefix + "/var/lib/gpu-fleet/textfile").glob("*.prom")):
        yield f"textfile-{path.name}", bytes_of_regular(path, MOST_OF_A_FILE + 1)
    for name in ("ready.json", "kernel.json"):
        text = bytes_of_regular(Path(prefix + "/var/lib/gpu-fleet/ready") / name, MOST_OF_A_FILE + 1)
        if text:
            yield name, text


def _ask(found: Collection, tools: Tools, source: Source, within_s: float) -> None:
    """A tool that hangs costs its time once: none of the driver's is started while one cannot be ended."""
    began = time.time()
    name, *arguments = source.command
    is_drivers = name.startswith(("nvidia", "dcgmi", "amd-smi"))
    hanging = tools.hanging() if is_drivers else ""
    if hanging:
        found.add(source.file, b"", failed=hanging)
        return
    try:
        path = tools.find(name)
    except CollectError:
        return
    try:
        answer = tools.ask(within_s, [path, *arguments], most=MOST_OF_A_FILE + 1, cut=True)
    except CollectError as error:
        found.add(source.file, b"", failed=str(error), seconds=round(time.time() - began, 1))
        return
    note: dict[str, object] = {
        "command": " ".join(source.command),
        "seconds": round(time.time() - began, 1),
        "status": answer.status,
    }
    if answer.status is None:
        why = f"after {within_s:.0f} s" if len(answer.text) <= MOST_OF_A_FILE else f"after {MOST_OF_A_FILE >> 20} MiB"
        note["failed"] = f"ended {why}"
    found.add(source.file, answer.text.encode(), **note)


def write(found: Collection, directory: Path, keep: int) -> Path:
    """The archive, under a name by host and time. Of earlier ones `keep` less one stay."""
    when = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(found.began))
    host = re.sub(r"[^A-Za-z0-9.-]", "-", os.uname().nodename)
    path = directory / f"evidence-{host}-{when}.tar.gz"
    new = directory / f".{path.name}.{os.getpid()}"
    with tarfile.open(new, "w:gz", compresslevel=3) as tar:
        for name, data in (("MANIFEST.json", found.manifest()), *found.files.items()):
            member = tarfile.TarInfo(f"{path.name[: -len('.tar.gz')]}/{name}")
            member.size, member.mtime, member.mode = len(data), int(found.began), 0o640
            tar.addfile(member, io.BytesIO(data))
    new.chmod(0o600)
    with new.open("rb") as file:
        os.fsync(file.fileno())
    new.replace(path)
    others = [old for old in directory.glob("evidence-*.tar.gz") if old != path]  # of this host under an earlier name too
    for old in sorted(others, key=lambda old: old.name.rpartition("-")[2], reverse=True)[keep - 1 :]:
        old.unlink(missing_ok=True)  # another run may have been faster
    return path


def _remove_leftovers(directory: Path) -> None:
    """Of runs that were killed, not of one that is at work."""
    for left in directory.glob(".evidence-*"):
        process = left.name.rpartition(".")[2]
        if process == str(os.getpid()) or not Path("/proc", process).exists():
            with contextlib.suppress(OSError):
                left.unlink()


def main(arguments: Sequence[str]) -> int:
    """`[REASON]`. The last line of what it prints is the path of the archive."""
    prefix = os.environ.get("GPU_FLEET_PREFIX", "")
    directory = Path(prefix + "/var/lib/gpu-fleet/evidence")
    if not os.access(directory, os.W_OK):
        print(f"gpu-fleet-evidence: cannot write below {directory}; run it as root (sudo)", file=sys.stderr)
        return 1
    _remove_leftovers(directory)
    if shutil.disk_usage(directory).free < 2 * MOST_BYTES:
        print(f"gpu-fleet-evidence: less than {2 * MOST_BYTES >> 20} MiB are free below {directory}", file=sys.stderr)
        return 1
    found = Collection(arguments[0] if arguments else "")
    collect(found, Tools(directory / ".hanging"), prefix, os.environ)
    try:
        path = write(found, directory, max(1, int(os.environ.get("GPU_FLEET_EVIDENCE_KEEP") or 5)))
    except OSError as error:
        print(f"gpu-fleet-evidence: no archive could be written below {directory}: {error.strerror}", file=sys.stderr)
        _remove_leftovers(directory)
        return 1
    failed = [note for note in found.notes if "failed" in note]
    for note in failed:
        print(f"not collected: {note['file']}: {note['failed']}", file=sys.stderr)
    print(path)
    return 0
