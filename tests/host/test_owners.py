"""Root in directories that belong to a service's account: whatever that account places there, nothing outside is changed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import stat
import threading
import time
from pathlib import Path

import pytest

from gpu_fleet.on_host import evidence, slurm
from gpu_fleet.on_host.converge.disk import Disk
from gpu_fleet.on_host.converge.errors import Failure
from gpu_fleet.on_host.converge.files import Files
from gpu_fleet.on_host.converge.host import Host
from gpu_fleet.on_host.converge.records import Placed
from gpu_fleet.on_host.tools import Process, Tools

FORMER = 4711
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
NAMES = [f"{number:04}" for number in range(400)]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(Host("apply", "", prefix=str(tmp_path), owners=True), Disk(), Placed(f"{tmp_path}/state", Disk()))


def _with_files(directory: Path) -> Path:
    directory.mkdir(parents=True)
    for name in NAMES:
        (directory / name).touch()
    return directory


def _owners(directory: Path) -> set[int]:
    return {path.lstat().st_uid for path in directory.iterdir()}


def _swap(inside: Path, link: Path, ends: threading.Event) -> None:
    """As the former owner may, over and over: the directory and a link to another one change places, in one step (renameat2)."""
    library = ctypes.CDLL(None)
    names = [str(path).encode() for path in (inside, link)]
    while not ends.is_set():
        assert library.renameat2(_HERE, names[0], _HERE, names[1], _EXCHANGE) == 0


def test_a_directory_that_changes_its_owner_is_not_raced_by_the_former_one(files: Files, tmp_path: Path) -> None:
    outside = _with_files(tmp_path / "etc")
    inside = _with_files(tmp_path / "var/lib/alloy/wal")
    link = inside.with_name("link")
    link.symlink_to(outside)
    ends = threading.Event()
    swapping = threading.Thread(target=_swap, args=(inside, link, ends))
    swapping.start()
    try:
        until = time.monotonic() + 4
        while time.monotonic() < until and _owners(outside) == {0}:
            with contextlib.suppress(Failure):  # what has vanished meanwhile
                files._set_owner("/var/lib/alloy", "daemon", "daemon", str(inside.parent), whole=True)
            if inside.parent.lstat().st_uid:
                os.chown(inside.parent, 0, 0)
    finally:
        ends.set()
        swapping.join()
    assert _owners(outside) == {0}, "root gave a file outside away"


def test_everything_in_a_directory_gets_the_new_owner_but_what_has_a_name_elsewhere(files: Files, tmp_path: Path) -> None:
    shadow = tmp_path / "shadow"
    shadow.touch()
    inside = _with_files(tmp_path / "var/lib/alloy/wal")
    (inside / "link").symlink_to(shadow)
    os.mkfifo(inside / "pipe")
    (inside / "0000").chmod(0o2755)
    for path in (inside.parent, inside, *inside.iterdir()):
        os.chown(path, FORMER, FORMER, follow_symlinks=False)
    (inside / "0000").chmod(0o2755)
    (inside / "hard").hardlink_to(shadow)
    files._set_owner("/var/lib/alloy", "daemon", "daemon", str(inside.parent), whole=True)
    daemon = inside.lstat().st_uid
    assert daemon not in (0, FORMER) and inside.parent.stat().st_uid == daemon
    assert {path.name for path in inside.iterdir() if path.lstat().st_uid != daemon} == {"hard"}
    assert shadow.stat().st_uid == 0
    assert stat.S_IMODE((inside / "0000").stat().st_mode) == 0o2755, "as it was"


def test_a_file_that_is_placed_has_the_mode_itself_and_not_what_a_link_names(files: Files, tmp_path: Path) -> None:
    """In the moment between writing and setting the mode."""
    shadow = tmp_path / "shadow"
    shadow.touch(0o600)
    new = Path(files.new_name("/x"))
    new.symlink_to(shadow)
    with pytest.raises(Exception, match="cannot set the mode"):
        files.swap_in("/x", 0o644, "root", "root")
    assert stat.S_IMODE(shadow.stat().st_mode) == 0o600


@pytest.mark.parametrize("name", ["slurm-said", "slurm-limit"])
def test_the_health_check_of_slurm_writes_through_no_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """slurmd starts it as root, and its directory belongs to the account of the readiness service."""
    shadow = tmp_path / "shadow"
    directory = tmp_path / "var/lib/gpu-fleet/ready"
    directory.mkdir(parents=True)
    (tmp_path / "var/lib/gpu-fleet/textfile").mkdir()
    (directory / name).symlink_to(shadow)
    monkeypatch.setenv("GPU_FLEET_PREFIX", str(tmp_path))
    monkeypatch.setattr(slurm, "health_check", lambda *_: slurm._note(directory / "slurm-limit", "because") or "drained")
    monkeypatch.setattr(slurm, "look", lambda *_: None)
    assert slurm.main(["health-check"]) == 0
    assert not shadow.exists()


def test_evidence_has_nothing_that_a_link_names_and_waits_for_no_pipe(tmp_path: Path) -> None:
    """The archive goes to a vendor, and other accounts may write in the textfile directory."""
    textfiles = tmp_path / "var/lib/gpu-fleet/textfile"
    textfiles.mkdir(parents=True)
    (tmp_path / "shadow").write_text("root:$6$secret")
    (textfiles / "a.prom").symlink_to(tmp_path / "shadow")
    os.mkfifo(textfiles / "b.prom")
    (textfiles / "c.prom").write_text("up 1\n")
    found: list[tuple[str, bytes]] = []
    reading = threading.Thread(target=lambda: found.extend(evidence._of_the_collectors(str(tmp_path))), daemon=True)
    reading.start()
    reading.join(10)
    assert [(name, text) for name, text in found if text] == [("textfile-c.prom", b"up 1\n")]


def test_the_record_of_a_tool_that_hangs_is_written_through_no_link(tmp_path: Path) -> None:
    """Other accounts may write in node_exporter's textfile directory."""
    (tmp_path / ".gpu_hanging").symlink_to(tmp_path / "shadow")
    Tools(tmp_path / ".gpu_hanging")._remember(Process(71, 1, "nvidia-smi"), 0)
    assert not (tmp_path / "shadow").exists() and "nvidia-smi" in (tmp_path / ".gpu_hanging").read_text()
