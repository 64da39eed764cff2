"""What a host in pull mode keeps in its state directory, below pull/. Earlier releases read and write the same.

version keys expires   of the newest publication seen
good/                  what came up last: bundle.tar settings secrets/ version, and programs that are being replaced: artifacts/
refused                the version that was rolled back here last
status succeeded       how and when the last run ended, and when one last succeeded
lock                   held by the run in progress
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Iterator, Mapping

from ..converge.disk import Disk, opened, remove_empty, sha256_of, sync, sync_tree, unlink
from ..converge.errors import Failure, attempt
from ..converge.events import say
from ..converge.lock import try_lock
from ..converge.programs import pairs, read_or_empty
from ..files import replace
from .index import DAY_S, Index, is_number

_METRICS = {
    "success": "1 when the last run applied the newest publication or found it already applied.",
    "timestamp_seconds": "When the last run ended.",
    "last_success_timestamp_seconds": "When a run last succeeded.",
    "version": "Version of the applied publication: the time when it was published.",
    "seen_version": "Version of the newest publication seen.",
    "expires_timestamp_seconds": "When the newest publication seen expires.",
}


class Kept:
    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.state = f"{prefix}/var/lib/gpu-fleet"
        self.directory = f"{self.state}/pull"
        self.good = f"{self.directory}/good"

    @property
    def exists(self) -> bool:
        return os.path.isdir(self.directory)

    @property
    def settings(self) -> dict[str, str]:
        """Those of the last apply; none where nothing was applied."""
        return settings_of(f"{self.state}/settings")

    @property
    def digest(self) -> str:
        return self.line("digest")

    @property
    def good_bundle(self) -> str:
        return sha256_of(f"{self.good}/bundle.tar")

    @property
    def seen_version(self) -> int:
        """A file that is empty or damaged is ignored; then it is the version of the bundle that runs. It was compared with the
        clock when it was taken, and not again: a clock that went back must not let an old copy in."""
        return next((int(line) for line in map(self.line, ("pull/version", "pull/good/version")) if is_number(line)), 0)

    def line(self, name: str) -> str:
        """The first of a file in the state directory."""
        return self.text(name).split("\n")[0]

    def text(self, name: str) -> str:
        return read_or_empty(f"{self.state}/{name}")

    def recover(self) -> None:
        """From a power cut between the two renames of keep_good."""
        if not os.path.isdir(self.good) and os.path.isdir(f"{self.good}.old"):
            os.rename(f"{self.good}.old", self.good)

    def remember(self, index: Index) -> None:
        """What later runs compare with, on disk before it counts."""
        disk = Disk()
        with attempt(f"cannot write below {self.state}"):
            for name, line in {"version": index.version, "keys": ",".join(index.keys), "expires": index.expires}.items():
                disk.write(f"{self.directory}/{name}", f"{line}\n".encode())
            disk.flush_changes()

    def keep_good(self, envelope: str, version: int) -> None:
        """An envelope that came up, to roll back to when a later one does not."""
        old = f"{self.good}.old"
        with attempt(f"cannot write below {self.state}"):
            for left in (f"{envelope}/bundle", f"{envelope}/artifacts", old):
                shutil.rmtree(left, ignore_errors=True)
            Path(envelope, "version").write_text(f"{version}\n")
            sync_tree(envelope)
            if os.path.isdir(self.good):
                os.rename(self.good, old)
            os.rename(envelope, self.good)
            sync(self.directory)
            shutil.rmtree(old, ignore_errors=True)

    def refuse(self, version: int) -> None:
        disk = Disk()
        disk.write(f"{self.directory}/refused", f"{version}\n".encode())
        disk.flush_changes()

    def forgive(self) -> None:
        unlink(f"{self.directory}/refused")

    def refuses(self, version: int) -> bool:
        """For a day, when its cause may be gone."""
        if self.line("pull/refused") != str(version):
            return False
        return time.time() - os.stat(f"{self.directory}/refused").st_mtime < DAY_S

    @contextlib.contextmanager
    def lock(self, tries: int) -> Iterator[None]:
        """One run at a time; a try takes a second."""
        with attempt(f"cannot lock {self.directory}/lock"), open(f"{self.directory}/lock", "ab") as file:
            while not try_lock(file.fileno()):
                tries -= 1
                if tries <= 0:
                    raise Failure("locked", "another run is in progress on this host; wait for it to end and try again")
                time.sleep(1)
            yield

    @contextlib.contextmanager
    def work(self) -> Iterator[str]:
        """A directory for this run. What killed runs left, secrets among it, is removed: a living one locks its own, as the
        provider's bootstrap.sh does. Where nothing was installed, nothing is left behind."""
        work = ""
        try:
            with attempt(f"cannot write below {self.state}; run as root (sudo), or free some space"):
                mask = os.umask(0o022)
                os.makedirs(self.state, exist_ok=True)
                os.umask(mask)
                for left in glob.glob(f"{glob.escape(self.state)}/incoming.*"):
                    with contextlib.suppress(FileNotFoundError), opened(left) as descriptor:
                        if try_lock(descriptor):
                            shutil.rmtree(left, ignore_errors=True)
                work = tempfile.mkdtemp(prefix="incoming.", dir=self.state)
            with opened(work) as descriptor:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                yield work
        finally:
            shutil.rmtree(work, ignore_errors=True)
            _ = remove_empty(self.state) and remove_empty(f"{self.prefix}/var/lib") and remove_empty(f"{self.prefix}/var")

    def report(self, ok: bool, text: str) -> int:
        """On the terminal, for --status, and as metrics, since nobody logs in to these hosts. Returns the exit code."""
        say(text)
        if self.exists:
            try:
                self._record(ok, text, int(time.time()))
            except OSError as error:
                say(f"this could not be recorded below {self.state}: {error.strerror}")
        return 0 if ok else 1

    def _record(self, ok: bool, text: str, now: int) -> None:
        directory = Path(self.directory)
        when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
        replace(directory / "status", f"{when}\n{'ok' if ok else 'failed'}\n{text}\n", 0o600)
        if ok:
            replace(directory / "succeeded", f"{now}\n", 0o600)
        if not os.path.isdir(f"{self.state}/textfile"):
            return
        last, version, expires = map(self.line, ("pull/succeeded", "pull/good/version", "pull/expires"))
        lines = []
        for (name, text), value in zip(
            _METRICS.items(), (str(int(ok)), str(now), last, version, str(self.seen_version), expires)
        ):
            if is_number(value):
                metric = f"gpu_fleet_pull_{name}"
                lines.append(f"# HELP {metric} {text}\n# TYPE {metric} gauge\n{metric} {value}\n")
        replace(Path(self.state, "textfile/fleet_pull.prom"), "".join(lines))


def settings_of(path: str) -> dict[str, str]:
    return pairs(read_or_empty(path))


def settings_text(values: Mapping[str, str]) -> bytes:
    """As converge stores them, to be compared with."""
    lines = [f"{name}={value}\n".encode("utf-8", "surrogateescape") for name, value in values.items()]
    return b"".join(sorted(lines))
