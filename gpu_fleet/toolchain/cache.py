"""The cache of the toolchain: its layout, its locks, and how a program is added as a whole or not at all.

    $XDG_CACHE_HOME/gpu-fleet/
      tools/NAME/VERSION/      the program and record.json: its source, its sha256, when
      pulumi-home/             Pulumi's own directory, with the plugins it is to use (pulumi_home.py)
      go/mod, go/build         Go's module and build caches
      wheels/                  Python packages of the offline kits that were made here
      locks/NAME               one installer at a time per program
      partial/NAME.PID/        unfinished work; the holder of the lock of NAME may remove all of it
      logs/NAME.log            what the last build printed

Nothing appears under tools/ before it is complete: a directory is prepared under partial/ and renamed. tools/ may be a link to
that of another cache on the same file system (.ci/run).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TextIO

RECORD = "record.json"
How = Literal["upstream", "go", "path"]


@dataclass(frozen=True, kw_only=True)
class Record:
    """Where an installed program is from. `why`: the reason it is not the upstream release, or what that was verified against.

    `program` is its path inside the directory of the record. `sha256` maps every file that is run to its checksum as installed.
    `at` is a UTC time, ISO 8601.
    """

    how: How
    why: str
    program: str
    sha256: dict[str, str]
    at: str

    @classmethod
    def now(cls, *, how: How, why: str, program: str, sha256: dict[str, str] | None = None) -> Record:
        return cls(how=how, why=why, program=program, sha256=sha256 or {}, at=datetime.now(UTC).isoformat(timespec="seconds"))

    def checked_now(self) -> Record:
        """The same, after its release was unavailable once more."""
        return replace(self, at=datetime.now(UTC).isoformat(timespec="seconds"))

    @property
    def age_s(self) -> float:
        return (datetime.now(UTC) - datetime.fromisoformat(self.at)).total_seconds()


class Cache:
    def __init__(self, root: Path | None = None):
        self.root = root or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-fleet"

    @property
    def tools(self) -> Path:
        return self.root / "tools"

    def directory(self, name: str, version: str) -> Path:
        return self.tools / name / version

    @property
    def wheels(self) -> Path:
        return self.root / "wheels"

    @property
    def go_modules(self) -> Path:
        return self.root / "go" / "mod"

    @property
    def go_builds(self) -> Path:
        return self.root / "go" / "build"

    def log(self, name: str) -> Path:
        path = self.root / "logs" / f"{name}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def record(self, name: str, version: str) -> Record | None:
        """None when the program is missing or its record cannot be read: it is then installed again."""
        try:
            fields = json.loads((self.directory(name, version) / RECORD).read_text())
            # Until November 2026 the toolchain recorded the lab's stand-ins too, which are not the program, and upstream under
            # another name.
            if fields["how"] == "stand-in":
                return None
            return Record(**{**fields, "how": "go" if fields["how"] == "go" else "upstream"})
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def damage(self, name: str, version: str, record: Record) -> str:
        """What is wrong with an installed program; empty when every file is as installed."""
        directory = self.directory(name, version)
        for file, expected in record.sha256.items():
            try:
                found = sha256_of(directory / file)
            except OSError as error:
                return f"{file} cannot be read ({error.strerror})"
            if found != expected:
                return f"{file} was changed since (sha256 {found}, installed as {expected})"
        return ""

    @contextlib.contextmanager
    def locked(self, name: str, on_wait: Callable[[str], None]) -> Iterator[None]:
        """Holds the lock of a program; `on_wait` is called once with its holder. A killed holder leaves no lock behind."""
        path = self.root / "locks" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a+") as file:
            waiting = False
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if not waiting:
                        file.seek(0)
                        on_wait(file.read().strip() or "unknown")
                        waiting = True
                    time.sleep(0.2)
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            yield

    @contextlib.contextmanager
    def partial(self, name: str) -> Iterator[Path]:
        """An empty directory for unfinished work; call it with the lock of `name` held. Leftovers of killed runs are removed."""
        parent = self.root / "partial"
        parent.mkdir(parents=True, exist_ok=True)
        for left in parent.glob(f"{name}.*"):
            shutil.rmtree(left, ignore_errors=True)
        directory = parent / f"{name}.{os.getpid()}"
        directory.mkdir()
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    def place(self, name: str, version: str, prepared: Path, record: Record) -> None:
        """Makes `prepared` (a directory inside a partial one) the installed program. Replaces a previous one."""
        _write(prepared / RECORD, record)
        target = self.directory(name, version)
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists():
            target.rename(prepared.parent / "replaced")
        prepared.rename(target)

    def note(self, name: str, version: str, record: Record) -> None:
        """Changes the record of an installed program; call it with the lock of `name` held."""
        fresh = self.directory(name, version) / "record.json.new"
        _write(fresh, record)
        fresh.rename(fresh.with_name("record.json"))

    @contextlib.contextmanager
    def using_go(self) -> Iterator[None]:
        """Keeps another run from removing Go's caches meanwhile; any number of builds may use them."""
        with self._go_lock() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            yield

    def free_go(self) -> int | None:
        """Removes Go's caches; returns the bytes freed, None when a build is using them."""
        with self._go_lock() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None
            go = self.root / "go"
            freed = sum(file.lstat().st_blocks * 512 for file in go.rglob("*") if not file.is_dir())
            shutil.rmtree(go, ignore_errors=True)
            return freed

    def _go_lock(self) -> TextIO:
        path = self.root / "locks" / "go-caches"
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a")


def _write(file: Path, record: Record) -> None:
    file.write_text(json.dumps(asdict(record), indent=2) + "\n")


def sha256_of(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
