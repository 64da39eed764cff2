"""Passwords: from a file or the terminal, never among arguments, in variables of processes, or where others can read them."""

from __future__ import annotations

import os
import pty
import shutil
import stat
from pathlib import Path

import pytest

from tests.host.hosts import page, snapshot
from tests.host.pull.pulled import PulledHost

PASSWORD = "correct horse $battery `staple`"
TOOLS = "cat grep id mkdir mktemp rm sed setsid sh sha256sum ssh-keygen tail timeout tr uname"


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text(f"{PASSWORD}\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def with_login(pulled: PulledHost) -> PulledHost:
    pulled.site.publish([page(secrets=("metrics-password", "logs-password"))])
    return pulled


def test_a_password_is_never_an_argument_or_a_variable_of_any_program(with_login: PulledHost, password_file: Path) -> None:
    """Every program that the scripts call is one that first writes down how it was called."""
    watched = password_file.parent / "watched"
    watched.mkdir()
    calls = password_file.parent / "calls"
    for tool in TOOLS.split():
        real = shutil.which(tool)
        (watched / tool).write_text(f'#!/bin/sh\n{{ echo "{tool} $*"; {shutil.which("env")}; }} >>"{calls}"\nexec {real} "$@"\n')
        (watched / tool).chmod(0o755)
    with_login.path = f"{watched}:{with_login.path}"
    assert with_login.install("--password-file", str(password_file)).code == 0
    with_login.at("/etc/page/index.html").write_text("by hand")
    run = with_login.pull()
    assert run.code == 0 and "repaired" in run.said, run.said
    called = calls.read_text()
    assert "ssh-keygen -Y verify" in called and "\nsh " in called
    assert PASSWORD not in called
    assert PASSWORD not in run.said


def test_a_password_is_never_stored_where_others_can_read_it(with_login: PulledHost, password_file: Path) -> None:
    with_login.install("--password-file", str(password_file))
    holding = [path for path in with_login.prefix.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]
    assert with_login.at("/etc/gpu-fleet/secrets/metrics-password") in holding
    assert with_login.at("/etc/gpu-fleet/secrets/logs-password") in holding, "one login for both has one password"
    for path in holding:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert stat.S_IMODE(with_login.at("/var/lib/gpu-fleet/pull").stat().st_mode) == 0o700


def test_another_login_for_logs_has_a_password_of_its_own(with_login: PulledHost, password_file: Path) -> None:
    other = password_file.with_name("other")
    other.write_text("other")
    run = with_login.install(
        "--username", "a", "--password-file", str(password_file), "--logs-username", "b", "--logs-password-file", str(other)
    )
    assert run.code == 0, run.said
    assert with_login.at("/etc/gpu-fleet/secrets/logs-password").read_text() == "other"
    assert with_login.values()["GPU_FLEET_METRICS_USERNAME"] == "a"
    assert with_login.values()["GPU_FLEET_LOGS_USERNAME"] == "b"


def test_a_new_password_is_set_by_installing_again_and_an_existing_one_is_not_prompted_for(
    with_login: PulledHost, password_file: Path
) -> None:
    with_login.install("--password-file", str(password_file))
    assert with_login.install().code == 0, "the existing one is kept"
    password_file.write_text("rotated")
    assert with_login.install("--password-file", str(password_file)).code == 0
    assert with_login.pull().code == 0
    assert with_login.at("/etc/gpu-fleet/secrets/metrics-password").read_text() == "rotated"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [("nowhere", None, "nowhere cannot be read"), ("empty", "", "empty is empty")],
)
def test_a_password_file_without_a_password_is_named(
    with_login: PulledHost, tmp_path: Path, name: str, content: str | None, message: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    run = with_login.install("--password-file", str(tmp_path / name))
    assert run.code == 1 and message in run.said, run.said
    assert snapshot(with_login.prefix) == {}


def test_without_a_file_and_without_a_terminal_the_option_is_named(with_login: PulledHost) -> None:
    run = with_login.install()
    assert run.code == 1
    assert run.said.splitlines()[-1].endswith("no terminal to prompt on: give --password-file FILE")
    assert snapshot(with_login.prefix) == {}


def test_the_terminal_prompts_and_does_not_echo_the_password(with_login: PulledHost) -> None:
    command = with_login.installer()
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe(command[0], command, {"PATH": with_login.path})
    shown = b""
    while b"Password of writer at https://mimir.example.com/api/v1/push: " not in shown:
        shown += os.read(terminal, 4096)
    os.write(terminal, PASSWORD.encode() + b"\n")
    try:
        while data := os.read(terminal, 4096):
            shown += data
    except OSError:  # the terminal's other side is closed
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, shown.decode()
    os.close(terminal)
    assert PASSWORD.encode() not in shown
    assert shown.count(b"Password of") == 1, "one login, prompted for once"
    assert with_login.at("/etc/gpu-fleet/secrets/metrics-password").read_text() == PASSWORD
