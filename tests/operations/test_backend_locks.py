"""Locks of a stack in a directory that machines share."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from gpu_fleet.operations import backend, deploy
from gpu_fleet.operations.engine import OperationError
from gpu_fleet.stackfile.naming import PROJECT

NO_PROCESS = 2**22 + 1  # above the largest number that Linux gives


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a pulumi left that ran on a machine of this name."""
    file = tmp_path / ".pulumi/locks/organization" / PROJECT / "prod/0a1b.json"
    file.parent.mkdir(parents=True)
    file.write_text(
        json.dumps({"pid": NO_PROCESS, "username": "ada", "hostname": socket.gethostname(), "timestamp": "2026-11-29T13:00:00Z"})
    )
    monkeypatch.setenv("PULUMI_BACKEND_URL", f"file://{tmp_path}")
    monkeypatch.setattr(backend, "_sees_every_process", lambda: True)
    return file


def test_the_lock_of_a_killed_run_on_this_machine_s_own_disk_is_released(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_file_system", lambda _: "ext4")
    assert backend.released("prod") == [f"process {NO_PROCESS} of 2026-11-29T13:00:00Z"]
    assert not lock.exists()


@pytest.mark.parametrize("kind", ["nfs4", "fuse.sshfs", ""])
def test_in_a_shared_directory_a_machine_of_this_name_may_be_another_one(
    lock: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Cloned machines and containers often have one name; without the lock two runs would write one state."""
    monkeypatch.setattr(backend, "_file_system", lambda _: kind)
    with pytest.raises(OperationError, match=f"currently locked by process {NO_PROCESS} of ada@.*`pulumi cancel --stack prod`"):
        deploy.release_locks("prod")
    assert lock.exists()


def test_what_a_run_on_another_machine_has_open_is_not_settled(lock: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settling deletes Helm's record of an installation that was cut off, or that goes on elsewhere."""
    lock.write_text(json.dumps({**json.loads(lock.read_text()), "hostname": "elsewhere"}))
    monkeypatch.setattr(deploy, "settle", lambda *_: pytest.fail("it is at work"))
    with pytest.raises(
        OperationError, match=f"currently locked by process {NO_PROCESS} of ada@elsewhere, since 2026-11-29T13:00:00Z"
    ):
        deploy._brings_up_new_ones("organization/gpu-fleet/prod", {}, None)  # type: ignore[arg-type]
    assert lock.exists()
    lock.unlink()
    monkeypatch.setattr(deploy, "settle", lambda *_: {})
    assert not deploy._brings_up_new_ones("prod", {}, None)  # type: ignore[arg-type]


def test_the_file_system_is_that_of_the_innermost_mount() -> None:
    assert backend._file_system(Path("/proc/self/fd")) == "proc"
    assert backend._file_system(Path("/sys/kernel")) == "sysfs"
    assert backend._file_system(Path("/nowhere/at/all")) == backend._file_system(Path("/"))
