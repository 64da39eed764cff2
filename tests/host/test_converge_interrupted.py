"""Runs that are killed at any instant, and two runs at once: the next run finishes, and remove still finds everything."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpu_fleet.host.part import Download, File, Source
from tests.host.hosts import Run, SimulatedHost, page, scripted, snapshot

STRIDE = 13  # every change takes two minutes; set it to 1 after a change to the order in which things are written


@pytest.fixture
def deadly(tmp_path: Path) -> Path:
    return tmp_path / "deadly"


def _run_until(host: SimulatedHost, deadly: Path, change: int, verb: str, parts: list | None) -> Run:
    """Killed at this change of the file system."""
    host.kill_at(deadly, change)
    try:
        return host.run(verb, parts)
    finally:
        host.shell = ("sh",)


def _fresh(directory: Path) -> SimulatedHost:
    """Always below the same prefix, since that is a setting too."""
    shutil.rmtree(directory / "host", ignore_errors=True)
    return SimulatedHost.below(directory)


def _keep(host: SimulatedHost) -> None:
    """What it is now is what `_again` makes: a copy takes a tenth of another apply."""
    subprocess.run(["cp", "--archive", host.prefix, host.directory / "kept"], check=True)


def _again(directory: Path) -> SimulatedHost:
    host = _fresh(directory)
    subprocess.run(["cp", "--archive", "--no-target-directory", directory / "kept", host.prefix], check=True)
    return host


def _changes(deadly: Path) -> int:
    return int((deadly / "count").read_text())


def _before() -> list:
    return [page("old\n"), page(name="leaving", files=(File(path="/etc/leaving/a", content=b"a"),), directories=())]


def _after() -> list:
    return [page("new\n", files=(*page("new\n").files[:1], File(path="/etc/page/more", content=b"more")))]


def _prepared(host: SimulatedHost) -> None:
    host.at("/etc/page").mkdir(parents=True)
    host.at("/etc/page/theirs").write_text("the administrator's\n")
    host.apply(_before())


def test_a_killed_apply_is_finished_by_the_next_one_and_can_be_removed(tmp_path: Path, deadly: Path) -> None:
    host = _fresh(tmp_path)
    _prepared(host)
    _keep(host)
    assert _run_until(host, deadly, 0, "apply", _after()).code == 0
    expected, changes = host.snapshot(), _changes(deadly)
    assert changes > 20
    for number in range(1, changes + 1, STRIDE):
        host = _again(tmp_path)
        killed = _run_until(host, deadly, number, "apply", _after())
        assert killed.code == -signal.SIGKILL, number
        if number % 2:
            host.apply(_after())
            assert host.snapshot() == expected, number
            assert host.check().code == 0, number
        assert host.remove().code == 0, number
        assert snapshot(host.prefix).keys() == {"etc", "etc/page", "etc/page/theirs"}, number


def test_a_killed_removal_is_finished_by_the_next_one(tmp_path: Path, deadly: Path) -> None:
    host = _fresh(tmp_path)
    _prepared(host)
    _keep(host)
    assert _run_until(host, deadly, 0, "remove", None).code == 0
    changes = _changes(deadly)
    for number in range(1, changes + 1, STRIDE):
        host = _again(tmp_path)
        assert _run_until(host, deadly, number, "remove", None).code == -signal.SIGKILL
        last = host.run("remove", _after())  # the copy on the host may be gone already
        assert last.code in (0, 3), number
        assert {name for name in snapshot(host.prefix) if not name.startswith("var")} == {"etc", "etc/page", "etc/page/theirs"}


@pytest.mark.parametrize("verb", ["remove", "apply"])
def test_a_file_of_others_that_was_restored_survives_a_run_killed_before_that_is_recorded(tmp_path: Path, verb: str) -> None:
    """The records call the path ours until then, so the next run removes the restored file and needs its copy again."""
    host = _fresh(tmp_path)
    host.at("/etc/leaving").mkdir(parents=True)
    host.at("/etc/leaving/a").write_text("the administrator's\n")
    host.apply(_before())
    assert host.at("/etc/leaving/a").read_text() == "a"
    # Only the last record of the part is missing when the file is back.
    theirs, done = host.at("/etc/leaving/a"), tmp_path / "killed"
    host.run_first(
        "import os, sys\n"
        "def watch(event, arguments):\n"
        "    if event == 'os.rename' and str(arguments[1]).endswith('/placed'):\n"
        f"        if os.path.exists({str(theirs)!r}) and 'administrator' in open({str(theirs)!r}).read():\n"
        f"            if not os.path.exists({str(done)!r}):\n"
        f"                open({str(done)!r}, 'w')\n"
        "                os.killpg(0, 9)\n"
        "sys.addaudithook(watch)\n"
    )
    assert host.run(verb, None if verb == "remove" else _after()).code == -signal.SIGKILL
    host.shell = ("sh",)
    host.run(verb, _after())
    assert theirs.read_text() == "the administrator's\n"
    host.remove()
    assert theirs.read_text() == "the administrator's\n"


def test_a_killed_first_apply_can_be_removed(tmp_path: Path, deadly: Path) -> None:
    host = _fresh(tmp_path)
    _run_until(host, deadly, 0, "apply", _after())
    for number in range(1, _changes(deadly) + 1, STRIDE):
        host = _fresh(tmp_path)
        _run_until(host, deadly, number, "apply", _after())
        host.apply(_after())
        assert host.check().code == 0
        host.remove()
        assert snapshot(host.prefix) == {}, number


_ONCE_BEFORE_LOCKING = """
import fcntl, os, subprocess
flock = fcntl.flock
def once(*arguments):
    fcntl.flock = flock
    {what}
    return flock(*arguments)
fcntl.flock = once
"""


@contextlib.contextmanager
def _at_work(host: SimulatedHost, **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    """An apply whose probe lasts until this ends, or the file `go` below the prefix exists."""
    script = f'touch "$GPU_FLEET_PREFIX/started"; until [ -e "{host.at("/go")}" ]; do /bin/sleep 0.1; done; echo A=1\n'
    parts = [page(name="slow", probe=scripted("slow", script), files=(), directories=())]
    log = host.directory / "slow.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(host.command("apply", parts), stdout=output, stderr=output, **options) as apply,
    ):
        try:
            while not host.at("/started").exists():
                assert apply.poll() is None, log.read_text()
                time.sleep(0.02)
            yield apply
        finally:
            host.at("/go").touch()


def test_a_second_run_says_who_holds_the_host_and_a_dead_one_holds_nothing(host: SimulatedHost) -> None:
    with _at_work(host) as first:
        second = host.run("apply", [page()])
        assert second.code == 1
        error = second.error("host")
        assert error["code"] == "locked"
        assert f"converge apply, process {first.pid}, since " in error["message"]
        first.kill()
    deadline = time.monotonic() + 120  # the probe it was waiting for is not killed with it
    while (third := host.run("apply", [page()])).code != 0:
        assert time.monotonic() < deadline, third.stdout
        time.sleep(0.1)


def test_a_refused_first_apply_leaves_the_lock_to_the_run_that_holds_it(host: SimulatedHost) -> None:
    other = SimulatedHost(directory=host.directory / "other", prefix=host.prefix, settings=host.settings)
    with _at_work(host) as first:
        refused = [other.run("apply", [page()]).error("host")["code"] for _ in range(2)]
        assert first.poll() is None
    assert first.returncode == 0
    assert refused == ["locked", "locked"], "the second refused one would have run beside the first"
    assert host.check().statuses.keys() == {"host", "slow"}


def test_a_lock_whose_file_was_deleted_locks_nothing(host: SimulatedHost) -> None:
    """A run that opened the file just before another one deleted it, with its lock, must not work beside the next."""
    host.apply([page()])
    lock = str(host.at("/var/lib/gpu-fleet/lock"))
    host.run_first(_ONCE_BEFORE_LOCKING.format(what=f"os.unlink({lock!r}); open({lock!r}, 'w')"))
    other = SimulatedHost(directory=host.directory / "other", prefix=host.prefix, settings=host.settings)
    with _at_work(host):
        assert other.run("apply", [page()]).error("host")["code"] == "locked"


def test_a_removal_that_meets_the_end_of_another_one_finds_nothing_and_leaves_nothing(host: SimulatedHost) -> None:
    """The connection of the first one was lost, and it went on: it deletes the records while the second waits for its lock."""
    host.apply([page()])
    state = host.at("/var/lib/gpu-fleet")
    command = [
        "find",
        str(state),
        *("-mindepth", "1", "-maxdepth", "1", "!", "-name", "scratch.*", "-exec", "rm", "-rf", "{}", "+"),
    ]
    host.run_first(_ONCE_BEFORE_LOCKING.format(what=f"subprocess.run({command!r})"))
    run = host.remove()
    assert run.code == 3 and '{"event":"absent"}' in run.stdout, run.stdout + run.stderr
    assert not state.exists()


def test_nobody_else_can_hold_the_lock_also_one_of_an_earlier_version_and_a_missing_one_stops_no_check(
    host: SimulatedHost,
) -> None:
    """Whoever can open a file for reading can lock it, and then no apply, removal or check of this host would ever run."""
    host.apply([page()])
    lock = host.at("/var/lib/gpu-fleet/lock")
    assert lock.stat().st_mode & 0o077 == 0
    lock.chmod(0o644)
    host.apply([page("new\n")])
    assert lock.stat().st_mode & 0o077 == 0
    lock.unlink()
    assert host.check().statuses.keys() == {"host", "page"}


def test_a_check_waits_for_an_apply_at_work(host: SimulatedHost) -> None:
    host.apply([page()])
    with _at_work(host), ThreadPoolExecutor() as pool:
        check = pool.submit(host.check)
        time.sleep(1)  # by now it waits
        assert not check.done()
        host.at("/go").touch()
        assert check.result().statuses.keys() == {"host", "slow"}, "what it compares with is the bundle of the finished apply"


def test_an_apply_waits_for_a_check_at_work(host: SimulatedHost) -> None:
    """A timer's check that a run happens to meet must not stop it."""
    host.apply([page()])
    lock = host.at("/var/lib/gpu-fleet/lock")
    with lock.open() as reader:
        fcntl.flock(reader, fcntl.LOCK_SH)
        apply = subprocess.Popen(host.command("apply", [page("new\n")]), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.5)
        assert apply.poll() is None
    assert apply.wait(120) == 0
    assert host.at("/etc/page/index.html").read_text() == "new\n"


def test_a_check_that_meets_a_long_apply_leaves_the_metrics_alone(host: SimulatedHost) -> None:
    host.apply([page()])
    metrics = host.at("/var/lib/gpu-fleet/fleet.prom")
    metrics.write_text("what was found before\n")
    host.run_first("import time\ntime.sleep = lambda _: None\n")  # it waits a minute
    with host.at("/var/lib/gpu-fleet/lock").open("a") as writer:
        fcntl.flock(writer, fcntl.LOCK_EX)
        check = host.run("check", None, "--metrics", "/var/lib/gpu-fleet/fleet.prom")
    assert check.error("host")["code"] == "locked"
    assert metrics.read_text() == "what was found before\n"


def test_an_interrupted_run_leaves_no_temporary_files(host: SimulatedHost) -> None:
    with _at_work(host, start_new_session=True) as apply:
        os.killpg(apply.pid, signal.SIGINT)
        assert apply.wait(120) == 130
    assert list(host.at("/var/lib/gpu-fleet").glob("scratch.*")) == []


def test_what_is_put_back_is_never_older_than_the_last_state_that_worked(tmp_path: Path, deadly: Path) -> None:
    """A run killed after its last change leaves the state before it behind, which by then is history."""
    host = _fresh(tmp_path)
    host.apply([page("first\n")])
    _keep(host)
    _run_until(host, deadly, 0, "apply", [page("second\n")])
    changes = _changes(deadly)
    for number in range(changes - 12, changes + 1, 2):
        host = _again(tmp_path)
        _run_until(host, deadly, number, "apply", [page("second\n")])
        host.apply([page("second\n")])
        missing = Download(path="/opt/gpu-fleet/bin/tool", sources={arch: Source(sha256="0" * 64) for arch in ("amd64", "arm64")})
        assert host.run("apply", [page("third\n", downloads=(missing,))]).statuses["page"] == "failed"
        assert host.at("/etc/page/index.html").read_text() == "second\n", number
