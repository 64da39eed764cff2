"""What `make test` prints on a machine that lacks things: all of them, each with what to do."""

from __future__ import annotations

import subprocess
from collections import namedtuple
from pathlib import Path

import pytest

from gpu_fleet.toolchain import Cache
from gpu_fleet.toolchain.errors import ToolchainError
from gpu_fleet.toolchain.progress import Progress
from lab import requirements


def test_a_bare_machine_is_told_everything_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_program(*_: object) -> None:
        raise ToolchainError("debootstrap is missing: sudo apt-get install debootstrap")

    def refused(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 1, "", "unshare: Operation not permitted\n")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(requirements.system, "require", no_program)
    monkeypatch.setattr(requirements, "unified_cgroups", lambda: None)
    monkeypatch.setattr(requirements.subprocess, "run", refused)
    monkeypatch.setattr(requirements, "_memory_gib", lambda: 1.0)
    monkeypatch.setattr(requirements.shutil, "disk_usage", lambda _: namedtuple("usage", "free")(1e9))
    monkeypatch.setattr(requirements.shutil, "which", lambda _: None)
    monkeypatch.setattr(requirements, "unreachable", lambda _: "does not answer (timed out)")
    monkeypatch.setattr(requirements, "located", lambda _: None)
    monkeypatch.setattr(requirements.os, "geteuid", lambda: 0)
    assert requirements.main() == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "make test cannot run on this machine; 12 things are missing:"
    for number, (what, fix) in enumerate(
        [
            ("debootstrap is missing", "apt-get install debootstrap"),
            ("cgroup v2", "systemd.unified_cgroup_hierarchy=1"),
            ("network namespaces", "NET_ADMIN"),
            ("mounts, and overlay", "SYS_ADMIN"),
            ("loop devices", "modprobe loop"),
            (f"disk space: {tmp_path} has 1.0 GB free, 22 GB are needed", "set XDG_CACHE_HOME"),
            ("disk space: ", "set TMPDIR"),
            ("memory: 1.0 GiB are available", "larger machine"),
            ("a Debian mirror", "set a mirror in /etc/apt"),
            ("a source of the tools: github.com does not answer (timed out)", "https_proxy"),
            ("NVIDIA's nvidia-smi", "use Debian or Ubuntu"),
            ("AMD's rocm-smi and amd-smi", "use Debian or Ubuntu"),
        ],
        1,
    ):
        assert lines[number].startswith(f"{number}. {what}") and fix in lines[number]


def test_a_machine_that_runs_the_tests_lacks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Cache().root.is_dir()
    monkeypatch.setattr(requirements, "_memory_gib", lambda: 16.0)  # what the tests themselves leave is another matter
    monkeypatch.setattr(requirements.shutil, "disk_usage", lambda _: namedtuple("usage", "free")(1e12))
    assert requirements.lacks(Progress()) == []
