"""Downloads of the host program in Python where space is short or a transfer takes long."""

from __future__ import annotations

import errno
import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpu_fleet.on_host.converge import downloads, fetch
from gpu_fleet.on_host.converge.disk import Disk
from gpu_fleet.on_host.converge.errors import Failure
from gpu_fleet.on_host.converge.files import Files
from gpu_fleet.on_host.converge.host import Host
from gpu_fleet.on_host.converge.manifest import Download
from gpu_fleet.on_host.converge.records import Placed
from tests.host.test_converge_downloads import Mirror, mirror

__all__ = ["mirror"]
MIB = 1 << 20


def _failure(root: Path, url: str) -> Failure:
    """Of placing what this URL has; nothing of it is left."""
    (root / "scratch").mkdir()
    host, disk = Host("apply", "", prefix=str(root), scratch=str(root / "scratch")), Disk()
    (root / "var/lib/gpu-fleet").mkdir(parents=True)
    placed = Placed(host.state, disk)
    tool = Download("/opt/gpu-fleet/bin/tool", 0o755, "0" * 64, "", url)
    with pytest.raises(Failure) as failure:
        downloads.Downloads(host, Files(host, disk, placed), placed).place(tool, "tool")
    assert [path for path in root.rglob("*") if path.is_file()] == []
    return failure.value


def _free(monkeypatch: pytest.MonkeyPatch, mib: float) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=int(mib * MIB)))


def test_a_mirror_that_sends_without_end_cannot_fill_the_disk(
    mirror: Mirror,  # the fixture
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _free(monkeypatch, 128 + 4)
    failure = _failure(tmp_path, f"{mirror.url}/endless")
    assert failure.code == "disk-full"
    assert "is larger than the 4 MiB that can be used below" in failure.message
    assert mirror.sent < 30_000_000, "what is sent after the limit is still in the buffers of the connection"


def test_the_last_space_of_a_disk_is_not_used_for_downloads(
    mirror: Mirror,  # the fixture
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _free(monkeypatch, 128 + 0.5)
    failure = _failure(tmp_path, f"{mirror.url}/endless")
    assert failure.code == "disk-full"
    assert "128 MiB below" in failure.message
    assert mirror.requests == []


def test_a_disk_that_fills_during_a_download_is_reported_with_what_to_do(
    mirror: Mirror,  # the fixture
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(path: str, _: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    monkeypatch.setattr(fetch, "create", full)
    failure = _failure(tmp_path, f"{mirror.url}/endless")
    assert failure.code == "disk-full"
    assert "free some space" in failure.message
    assert len(mirror.requests) == 1, "another try would find no space either"


def test_a_long_download_prints_signs_of_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise a waiting client would give up on the host."""
    monkeypatch.setattr(fetch, "_BEAT_S", 1)
    monkeypatch.setattr(fetch, "_fetch", lambda *_: time.sleep(2.5))
    fetch.fetch("http://127.0.0.1:9/tool", str(tmp_path / "tool"), MIB, "tool: still downloading")
    assert capsys.readouterr().err == "tool: still downloading, for 1 seconds\ntool: still downloading, for 2 seconds\n"
