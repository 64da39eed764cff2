"""What travels to a host: any tar and gzip can read it, and the work of making it is done once."""

from __future__ import annotations

import asyncio
import gzip
import io
import tarfile
import tempfile
import time
from pathlib import Path

import pytest

from gpu_fleet.provider import envelope
from gpu_fleet.provider.envelope import Archive, Artifacts

DIGEST = "a" * 64


def unpacked(archive: Archive) -> dict[str, bytes]:
    data = b"".join(archive.chunks())
    assert len(data) == archive.size, "the host reads exactly so many bytes"
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar.getmembers()}


def compressed(artifacts: Artifacts) -> Path:
    return asyncio.run(artifacts.compressed(DIGEST))


def test_members_of_any_size_come_out_as_they_went_in(tmp_path: Path) -> None:
    members = {"empty": b"", "block": b"x" * 512, "bundle.tar": bytes(range(256)) * 1000}
    (tmp_path / DIGEST).write_bytes(b"program" * 10_000)
    archive = Archive({**members, "artifacts/a.gz": compressed(Artifacts(tmp_path))})
    found = unpacked(archive)
    assert gzip.decompress(found.pop("artifacts/a.gz")) == b"program" * 10_000
    assert found == members
    assert Archive({}).size == 0, "verbs that need no envelope send none"


def test_a_program_is_compressed_once_for_all_hosts_and_the_next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / DIGEST).write_bytes(b"program")
    runs = []
    compress = envelope.compress
    monkeypatch.setattr(envelope, "compress", lambda *paths: runs.append(paths) or compress(*paths))

    async def three_hosts() -> None:
        artifacts = Artifacts(tmp_path)
        await asyncio.gather(*(artifacts.compressed(DIGEST) for _ in range(3)))

    asyncio.run(three_hosts())
    compressed(Artifacts(tmp_path))
    assert len(runs) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [DIGEST, f"{DIGEST}.gz"]


def test_a_directory_that_is_not_ours_to_write_in_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / DIGEST).write_bytes(b"program")
    make = tempfile.mkstemp

    def refuse(*, dir: Path, **options: str) -> tuple[int, str]:
        if dir == tmp_path:
            raise PermissionError(13, "Permission denied")
        return make(dir=dir, **options)

    monkeypatch.setattr(tempfile, "mkstemp", refuse)  # modes do not stop root
    artifacts = Artifacts(tmp_path)
    assert gzip.decompress(compressed(artifacts).read_bytes()) == b"program"
    assert [path.name for path in tmp_path.iterdir()] == [DIGEST]


def test_files_that_are_compressed_at_once_go_into_one_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a thread of its own: of two directories the first would be deleted with what is in it."""
    names = [letter * 64 for letter in "abcdef"]
    for name in names:
        (tmp_path / name).write_bytes(name.encode())
    make, make_directory = tempfile.mkstemp, tempfile.TemporaryDirectory

    def refuse(*, dir: Path, **options: str) -> tuple[int, str]:
        if dir == tmp_path:
            raise PermissionError(13, "Permission denied")
        return make(dir=dir, **options)

    def slowly(**options: str) -> tempfile.TemporaryDirectory[str]:
        time.sleep(0.1)
        return make_directory(**options)

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    monkeypatch.setattr(tempfile, "TemporaryDirectory", slowly)

    async def together() -> list[Path]:
        return await asyncio.gather(*(artifacts.compressed(name) for name in names))

    artifacts = Artifacts(tmp_path)
    files = asyncio.run(together())
    assert [gzip.decompress(file.read_bytes()).decode() for file in files] == names
    artifacts.close()
    assert not [file for file in files if file.exists()], "hundreds of megabytes"
