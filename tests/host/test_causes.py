"""What an error of the system means on a host: which limit it is, where, and the command for it."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_fleet.on_host.converge import causes, programs
from gpu_fleet.on_host.converge.errors import Failure


def status(**values: int) -> Any:
    usual = {"f_files": 1000, "f_favail": 900, "f_bavail": 1 << 20, "f_frsize": 4096, "f_flag": 0}
    return lambda _: SimpleNamespace(**{**usual, **values})


@pytest.mark.parametrize(
    ("file_system", "number", "code", "said"),
    [
        (
            {"f_favail": 1},
            errno.ENOSPC,
            "disk-full",
            "there is space, but no inode is left on the file system of {0} (df -i {0})",
        ),
        ({"f_bavail": 2}, errno.ENOSPC, "disk-full", "the file system of {0} is full (df -h {0}); free some space"),
        ({"f_files": 0, "f_favail": 0}, errno.ENOSPC, "disk-full", "No space left on device; free some space and apply again"),
        ({}, errno.EDQUOT, "disk-full", "is used up, whatever df says: `quota -vs`"),
        ({"f_flag": os.ST_RDONLY}, errno.EROFS, "no-write", "is mounted read-only (findmnt "),
        ({}, errno.EIO, "no-write", "the disk or its file system is damaged: `dmesg`"),
        ({}, errno.EUCLEAN, "no-write", "the disk or its file system is damaged: `dmesg`"),
        ({}, errno.EMFILE, "limit", "too many files are open: `ulimit -n`"),
        ({}, errno.EFBIG, "limit", "File too large; this login may write no file of that size (ulimit -f; pam_limits)"),
        ({}, errno.EISDIR, "internal", "Is a directory"),
    ],
)
def test_a_failed_write_says_which_limit_it_met(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_system: dict[str, int], number: int, code: str, said: str
) -> None:
    monkeypatch.setattr(os, "statvfs", status(**file_system))
    # The file that was to be made is not there; its directory is.
    failure = Failure.of("cannot write", OSError(number, os.strerror(number), f"{tmp_path}/new/file"))
    assert failure.code == code and said.format(tmp_path) in failure.message


def test_a_write_without_a_path_in_its_error_is_explained_by_what_was_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", status(f_favail=0))
    failure = Failure.of(f"cannot write {tmp_path}/start-alloy", OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert f"no inode is left on the file system of {tmp_path} " in failure.message


def test_a_line_of_a_program_is_explained_by_the_path_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is that line which is shown, not the last."""
    monkeypatch.setattr(causes, "flags_of", lambda path: causes.IMMUTABLE if path == str(tmp_path) else 0)
    said = f"dpkg: error creating directory '.{tmp_path}/doc/ours': Operation not permitted\nE: Sub-process returned an error\n"
    failure = Failure.saying("download", "cannot install", said)
    assert failure.code == "no-write"
    assert failure.message.endswith(
        f"not permitted; {tmp_path} is locked against changes (chattr +i); unlock it (chattr -i {tmp_path}) and apply again"
    )


def test_a_program_on_a_file_system_without_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "postinst").touch()
    monkeypatch.setattr(os, "statvfs", status(f_flag=os.ST_NOEXEC))
    failure = Failure.saying("packages", "cannot install", f"unable to execute script ({tmp_path}/postinst): Permission denied\n")
    assert failure.code == "no-write" and "is mounted noexec" in failure.message and "mount -o remount,exec " in failure.message


@pytest.mark.parametrize(
    "said",
    [
        "sh: 1: Cannot fork",
        "bash: fork: retry: Resource temporarily unavailable",
        "useradd: fork: Resource temporarily unavailable",
    ],
)
def test_a_host_without_a_process_to_spare_is_no_internal_error(said: str) -> None:
    failure = Failure.saying("internal", "cannot create user alloy", said)
    assert failure.code == "limit" and "the limit of this login (ulimit -u)" in failure.message


@pytest.mark.parametrize(
    ("said", "numbers"),
    [
        (
            "useradd: Can't get unique UID (no more available UIDs)\nuseradd: can't create user\n",
            "SYS_UID_MIN to SYS_UID_MAX",
        ),
        ("groupadd: Can't get unique GID (no more available GIDs)\n", "SYS_GID_MIN to SYS_GID_MAX"),
    ],
)
def test_numbers_of_accounts_that_are_used_up_are_named(said: str, numbers: str) -> None:
    """As shadow 4.13 prints it, whose last line says nothing."""
    failure = Failure.saying("internal", "cannot create user alloy", said)
    assert (
        failure.code == "limit"
        and "no more available" in failure.message
        and f"({numbers} in /etc/login.defs)" in failure.message
    )


def test_a_lock_has_the_same_text_and_is_none() -> None:
    assert causes.of_line("can't create transaction lock on /var/lib/rpm/.rpm.lock (Resource temporarily unavailable)") is None


def test_a_program_that_cannot_be_started_is_not_taken_for_a_missing_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process(*_: object, **__: object) -> None:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(programs.subprocess, "Popen", no_process)
    with pytest.raises(Failure) as caught:
        programs.run("systemctl", "show")
    assert caught.value.code == "limit" and caught.value.message.startswith(
        "cannot start systemctl: Resource temporarily unavailable; no process"
    )


def test_a_program_that_somebody_kills_is_named_with_its_signal() -> None:
    with pytest.raises(Failure) as caught:
        programs.must("systemd did not read the unit files", "sh", "-c", "kill -KILL $$")
    assert (caught.value.code, caught.value.message) == (
        "stopped",
        "systemd did not read the unit files: sh was ended by SIGKILL",
    )
