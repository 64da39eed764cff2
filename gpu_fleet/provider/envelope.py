"""What is sent to a host: a tar archive whose large members are compressed.

A 400 MB program is compressed once, and the bundle once per run; sending them to a thousand hosts costs no further compression
and a third of the network time. The host unpacks a program straight to its place.
"""

from __future__ import annotations

import asyncio
import gzip
import os
import shutil
import tarfile
import tempfile
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path

_BLOCK = 512  # of a tar archive
_CHUNK = 256 * 1024
_QUICKLY = 1  # higher levels take three times as long to save another 10 % of a program


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """Bundle, settings and secrets of one host."""

    bundle: bytes = field(repr=False)
    settings: Mapping[str, str]
    secrets: Mapping[str, str] = field(repr=False)

    def members(self) -> dict[str, bytes]:
        settings = "".join(f"{name}={value}\n" for name, value in sorted(self.settings.items()))
        secrets = {f"secrets/{name}": value.encode() for name, value in sorted(self.secrets.items())}
        return {"bundle.tar.gz": gzipped(self.bundle), "settings": settings.encode(), **secrets}


Members = Mapping[str, bytes | Path]


class Artifacts:
    """Files that hosts may need, named by their sha256. `NAME.gz` is created beside a file when a host first needs it, and
    kept."""

    def __init__(self, directory: Path):
        self.directory = directory
        self._making: dict[str, asyncio.Task[Path]] = {}
        self._lock = threading.Lock()
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    async def compressed(self, digest: str) -> Path:
        """Raises FileNotFoundError."""
        if digest not in self._making:
            self._making[digest] = asyncio.create_task(asyncio.to_thread(self._compressed, self.directory / digest))
        return await asyncio.shield(self._making[digest])

    def close(self) -> None:
        if self._temporary:
            self._temporary.cleanup()

    def _compressed(self, file: Path) -> Path:
        if not file.exists():
            raise FileNotFoundError(file)
        beside = file.with_name(f"{file.name}.gz")
        if beside.exists():
            return beside
        try:
            return compress(file, beside)
        except OSError:  # the directory is read-only or full
            return compress(file, self._elsewhere() / beside.name)

    def _elsewhere(self) -> Path:
        """One directory for all files. Each file has its own thread: two directories at once, and the first one, with the
        files in it, would be deleted when the second takes its place."""
        with self._lock:
            if self._temporary is None:
                self._temporary = tempfile.TemporaryDirectory(prefix="gpu-fleet-artifacts-")
            return Path(self._temporary.name)


def compress(file: Path, target: Path) -> Path:
    """Creates the target atomically. Raises OSError."""
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=".partial")
    partial = Path(name)
    try:
        with (
            file.open("rb") as source,
            os.fdopen(descriptor, "wb") as raw,
            gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=_QUICKLY, mtime=0) as compressed,
        ):
            shutil.copyfileobj(source, compressed, _CHUNK)
        return partial.rename(target)
    finally:
        partial.unlink(missing_ok=True)


@dataclass(frozen=True)
class Archive:
    """An archive of members, ready to be sent. `size` in bytes; `chunks` may be iterated several times."""

    members: Members

    @property
    def size(self) -> int:
        return sum(len(piece) if isinstance(piece, bytes) else piece.stat().st_size for piece in self._pieces)

    def chunks(self) -> Iterable[bytes]:
        """Read chunk by chunk: artifacts are too large to keep in memory for hundreds of hosts at once."""
        for piece in self._pieces:
            if isinstance(piece, bytes):
                yield piece
                continue
            with piece.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    yield chunk

    @cached_property
    def _pieces(self) -> list[bytes | Path]:
        pieces: list[bytes | Path] = []
        for name, content in self.members.items():
            info = tarfile.TarInfo(name)
            info.mode = 0o600
            info.size = len(content) if isinstance(content, bytes) else content.stat().st_size
            pieces += [info.tobuf(tarfile.USTAR_FORMAT), content, bytes(-info.size % _BLOCK)]
        return [*pieces, bytes(2 * _BLOCK)] if pieces else []


@lru_cache(maxsize=8)
def gzipped(data: bytes) -> bytes:
    """The bundle is the same for all hosts."""
    return gzip.compress(data, mtime=0)
