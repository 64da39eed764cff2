"""The life of a host that provisions itself: installed, unchanged, repaired, brought forward, rolled back, removed."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from gpu_fleet.host.part import Directory, Download, File, HttpCheck, Source
from gpu_fleet.host.parts.pull import ZIP, Pull
from tests.host.hosts import deadly, page, snapshot, web
from tests.host.pull.pulled import PulledHost, Site
from tests.host.test_converge_downloads import ARCH

STRIDE = 7  # set it to 1 after a change to the order in which things are written


def _answer(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as response:
        return response.read().decode()


@pytest.fixture
def port(site: Site, free_port: int) -> int:
    site.settings["WEB_PORT"] = str(free_port)
    return free_port


def test_a_host_is_installed_by_one_command_and_knows_who_it_is(pulled: PulledHost, port: int) -> None:
    digest = pulled.site.publish([page(), web(pulled.simulated)])
    run = pulled.install("--cluster", "inference")
    assert run.code == 0, run.said
    assert pulled.digest() == digest, "the bundle is the one that push would send"
    assert _answer(port).startswith("web answers")
    values = pulled.values()
    assert values["GPU_FLEET_INSTANCE"] == "gpu-node-007"
    assert (values["GPU_FLEET_DATACENTER"], values["GPU_FLEET_CLUSTER"]) == ("us-west", "inference")
    assert values["GPU_FLEET_STACK"] == "us-west/inference"
    status = pulled.pull("--status")
    assert status.code == 0, status.said
    assert digest in status.said and "ok: bundle" in status.said


def test_a_second_installation_and_a_pull_change_nothing(pulled: PulledHost, port: int) -> None:
    pulled.site.publish([page(), web(pulled.simulated)])
    pulled.install("--cluster", "inference")
    before, answer = pulled.simulated.snapshot(), _answer(port)
    again = pulled.install()
    assert again.code == 0, again.said
    pull = pulled.pull()
    assert pull.code == 0, pull.said
    assert pull.said.rstrip().endswith("nothing to do")
    assert _answer(port) == answer, "no service was restarted"
    changed = {path for path, entry in pulled.simulated.snapshot().items() if entry != before.get(path)}
    assert changed <= {"var/log/gpu-fleet/supervisord.log"}
    assert pulled.values()["GPU_FLEET_CLUSTER"] == "inference", "what was given once is kept"


def test_a_pull_repairs_what_was_changed_by_hand(pulled: PulledHost) -> None:
    pulled.site.publish([page(secrets=("metrics-password",))])
    password = pulled.simulated.directory / "password"
    password.write_text("s3cret\n")
    pulled.install("--password-file", str(password))
    pulled.at("/etc/page/index.html").write_text("by hand")
    secret = pulled.at("/etc/gpu-fleet/secrets/metrics-password")
    secret.write_text("by hand")
    run = pulled.pull()
    assert run.code == 0 and "2 parts repaired" in run.said, run.said
    assert pulled.at("/etc/page/index.html").read_text() == "hello\n"
    assert secret.read_text() == "s3cret"


def test_how_a_run_ended_is_a_metric(pulled: PulledHost) -> None:
    textfiles = pulled.at("/var/lib/gpu-fleet/textfile")
    textfile = Directory(path="/var/lib/gpu-fleet/textfile", contents="runtime")
    pulled.site.publish([page(directories=(*page().directories, textfile))])
    pulled.install()
    metrics = textfiles / "fleet_pull.prom"
    assert "\ngpu_fleet_pull_success 1\n" in metrics.read_text()
    assert re.search(r"^gpu_fleet_pull_timestamp_seconds 1\d{9}$", metrics.read_text(), re.MULTILINE)
    assert oct(metrics.stat().st_mode)[-3:] == "644", "node_exporter reads it as another user"
    (pulled.site.directory / "latest").unlink()
    assert pulled.pull().code == 1
    assert "\ngpu_fleet_pull_success 0\n" in metrics.read_text()
    pulled.pull("--remove")
    assert not textfiles.exists()


def test_a_new_bundle_and_new_settings_of_the_stack_arrive_by_themselves(pulled: PulledHost) -> None:
    pulled.site.publish([page()])
    pulled.install("--metrics-url", "https://mimir.of.this.host/api/v1/push")
    moved = {"GPU_FLEET_LOGS_URL": "https://loki.new", "GPU_FLEET_METRICS_URL": "https://mimir.new"}
    digest = pulled.site.publish([page("newer\n")], settings=moved)
    run = pulled.pull()
    assert run.code == 0 and "came up" in run.said, run.said
    assert pulled.digest() == digest
    assert pulled.at("/etc/page/index.html").read_text() == "newer\n"
    assert pulled.values()["GPU_FLEET_LOGS_URL"] == "https://loki.new"
    assert pulled.values()["GPU_FLEET_METRICS_URL"] == "https://mimir.of.this.host/api/v1/push", "this host overrides it"


def test_a_bundle_that_does_not_come_up_is_rolled_back_as_a_whole_and_left_alone(pulled: PulledHost, port: int) -> None:
    good = pulled.site.publish([page(), web(pulled.simulated)])
    pulled.install()
    bad = pulled.site.publish([page("newer\n"), web(pulled.simulated, "broken")])
    run = pulled.pull()
    assert run.code == 1
    assert f"bundle {bad[:12]} did not come up (web: " in run.said
    assert run.said.rstrip().endswith(f"bundle {good[:12]} is running")
    assert pulled.digest() == good
    assert pulled.at("/etc/page/index.html").read_text() == "hello\n", "parts that did come up are rolled back too"
    answer = _answer(port)
    assert answer.startswith("web answers")
    assert pulled.pull("--status").code == 1

    pulled.at("/etc/page/index.html").write_text("by hand")
    again = pulled.pull()
    assert again.code == 1 and "was rolled back" in again.said, again.said
    assert pulled.at("/etc/page/index.html").read_text() == "hello\n", "what runs is kept in repair meanwhile"
    assert _answer(port) == answer, "the bad bundle was not tried again"

    fixed = pulled.site.publish([page("newer\n"), web(pulled.simulated, "fixed")])
    assert pulled.pull().code == 0
    assert pulled.digest() == fixed
    assert pulled.pull("--status").code == 0


def test_settings_that_do_not_come_up_are_rolled_back_too(pulled: PulledHost, port: int) -> None:
    pulled.site.publish([web(pulled.simulated)])
    pulled.install()
    pulled.site.publish([web(pulled.simulated)], settings={"WEB_PORT": "not a port"})
    assert pulled.pull().code == 1
    assert _answer(port).startswith("web answers")
    assert pulled.values()["WEB_PORT"] == str(port)


def test_a_bundle_whose_own_pull_program_is_broken_is_rolled_back(pulled: PulledHost, monkeypatch: pytest.MonkeyPatch) -> None:
    good = pulled.site.publish([page()])
    pulled.install()
    with monkeypatch.context() as patch:
        real = File.from_rootfs
        broken = File(path="/opt/gpu-fleet/bin/gpu-fleet-pull", content=b"#!/bin/sh\necho broken >&2; exit 1\n", mode=0o755)
        patch.setattr(File, "from_rootfs", lambda path, **given: broken if path == broken.path else real(path, **given))
        pulled.site.publish([page("newer\n")])
    run = pulled.pull()
    assert run.code == 1 and "its gpu-fleet-pull does not work: broken" in run.said, run.said
    assert pulled.digest() == good
    assert pulled.pull("--check").code == 0


def test_programs_come_from_the_publication_and_the_old_one_is_kept_for_rollback(pulled: PulledHost, port: int) -> None:
    def tool(content: bytes) -> Download:
        digest = hashlib.sha256(content).hexdigest()
        pulled.site.artifacts.joinpath(digest).write_bytes(content)
        return Download(path="/opt/gpu-fleet/bin/tool", sources={ARCH: Source(sha256=digest)})

    pulled.site.artifacts = pulled.simulated.directory / "artifacts"
    pulled.site.artifacts.mkdir()
    pulled.site.publish([page(downloads=(tool(b"old"),)), web(pulled.simulated)])
    assert pulled.install().code == 0
    assert pulled.at("/opt/gpu-fleet/bin/tool").read_bytes() == b"old"
    for file in (pulled.site.directory / "artifacts").iterdir():
        file.unlink()
    pulled.site.publish([page(downloads=(tool(b"new"),)), web(pulled.simulated, "broken")])
    run = pulled.pull()
    assert run.code == 1 and "is running" in run.said, run.said
    assert pulled.at("/opt/gpu-fleet/bin/tool").read_bytes() == b"old"
    fixed = pulled.site.publish([page(downloads=(tool(b"new"),)), web(pulled.simulated)])
    assert pulled.pull().code == 0
    assert pulled.digest() == fixed
    assert pulled.at("/opt/gpu-fleet/bin/tool").read_bytes() == b"new"
    assert not pulled.at("/var/lib/gpu-fleet/pull/good/artifacts").exists(), "old programs go when the new ones work"


def test_a_directory_or_a_stick_serves_as_well_as_a_server(pulled: PulledHost) -> None:
    pulled.site.url = ""
    pulled.site.publish([page()])
    assert pulled.install().code == 0, "without --from the installer's own directory is taken"
    pulled.site.publish([page("newer\n")])
    assert pulled.pull().code == 0
    assert pulled.at("/etc/page/index.html").read_text() == "newer\n"


def test_a_host_without_its_origin_says_so_and_stays_in_repair(pulled: PulledHost) -> None:
    digest = pulled.site.publish([page()])
    pulled.install()
    (pulled.site.directory / "latest").unlink()
    pulled.at("/etc/page/index.html").write_text("by hand")
    run = pulled.pull()
    assert run.code == 1
    assert f"cannot get {pulled.site.url}/latest: the server answered 404" in run.said
    assert f"bundle {digest[:12]} is running" in run.said
    assert pulled.at("/etc/page/index.html").read_text() == "hello\n"


def test_an_installation_that_does_not_come_up_is_tried_again_by_the_timer(pulled: PulledHost, port: int) -> None:
    pulled.site.publish([page(), web(pulled.simulated, "broken")])
    run = pulled.install()
    assert run.code == 1
    assert "web: service gpu-fleet-web does not keep running" in run.said and "tried again" in run.said
    pulled.site.publish([page(), web(pulled.simulated, "fixed")])
    assert pulled.pull().code == 0
    assert _answer(port).startswith("fixed")


def test_a_pull_that_is_killed_half_way_is_finished_by_the_next(pulled: PulledHost, port: int, tmp_path: Path) -> None:
    pulled.site.publish([page(), web(pulled.simulated)])
    pulled.install()
    # A service that never answers: the pull is killed while it waits, after the page was placed and before anything is kept.
    digest = pulled.site.publish([page("newer\n"), web(pulled.simulated, "slow", checks=(_never(port),))])
    run = subprocess.Popen(
        [str(pulled.program)],
        env={"PATH": pulled.path},
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    while pulled.at("/etc/page/index.html").read_text() != "newer\n":
        assert run.poll() is None, "it ended before it placed the page"
        time.sleep(0.05)
    os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    assert pulled.digest() == digest
    fixed = pulled.site.publish([page("newest\n"), web(pulled.simulated, "fixed")])
    again = pulled.pull()
    assert again.code == 0, again.said
    assert pulled.digest() == fixed
    assert _answer(port).startswith("fixed")


def test_a_pull_that_is_killed_at_any_change_of_its_own_is_finished_by_the_next(pulled: PulledHost, tmp_path: Path) -> None:
    """Those of converge: tests/host/test_converge_interrupted.py."""
    pulled.site.publish([page()])
    pulled.install()
    directory, state = tmp_path / "deadly", pulled.at("/var/lib/gpu-fleet")
    pulled.site.publish([page("0\n")])
    pulled.first = deadly(directory, 0)
    assert pulled.pull().code == 0
    changes = int((directory / "count").read_text())
    assert changes > 20
    for change in range(1, changes + 1, STRIDE):
        digest = pulled.site.publish([page(f"{change}\n")])
        pulled.first = deadly(directory, change)
        assert pulled.pull().code == -signal.SIGKILL, change
        pulled.first = ""
        run = pulled.pull()
        assert run.code == 0, f"{change}: {run.said}"
        assert (pulled.digest(), pulled.at("/etc/page/index.html").read_text()) == (digest, f"{change}\n")
        assert pulled.pull().said.rstrip().endswith("nothing to do")
        assert {path.name for path in (state / "pull").iterdir()} == {
            "good",
            "lock",
            "version",
            "keys",
            "expires",
            "status",
            "succeeded",
        }
        assert not list(state.glob("incoming.*"))


def test_a_rollback_to_another_program_that_was_cut_off_is_finished(pulled: PulledHost) -> None:
    """Converge of earlier releases removes what is no longer wanted before it places what is."""
    pulled.site.publish([page()])
    pulled.install()
    pulled.at(ZIP).unlink()
    assert pulled.pull().code == 0 and pulled.at(ZIP).exists()
    assert pulled.pull().said.rstrip().endswith("nothing to do")


def _never(port: int) -> HttpCheck:
    return HttpCheck(url=f"http://127.0.0.1:{port}/", contains="what it never says", within_s=600)


def test_a_run_removes_what_a_killed_one_left(pulled: PulledHost, port: int) -> None:
    pulled.site.publish([page(), web(pulled.simulated)])
    pulled.install()
    left = pulled.at("/var/lib/gpu-fleet/incoming.killed")
    left.mkdir()
    (left / "secrets").write_text("the push password")
    assert pulled.pull().code == 0
    assert not left.exists()


def test_one_run_at_a_time(pulled: PulledHost) -> None:
    pulled.site.publish([page()])
    pulled.install()
    with pulled.at("/var/lib/gpu-fleet/pull/lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        pulled.at("/etc/page/index.html").write_text("by hand")
        run = pulled.pull()
        assert (run.code, run.said) == (1, "another run is in progress on this host; wait for it to end and try again\n")
        assert pulled.at("/etc/page/index.html").read_text() == "by hand"
        assert pulled.pull("--status").code == 0, "the other run reports its own result"
        removal = subprocess.Popen([*pulled.command, "--remove"], env={"PATH": pulled.path}, stderr=subprocess.PIPE, text=True)
        with pytest.raises(subprocess.TimeoutExpired):
            removal.wait(3)
    assert removal.communicate()[1].endswith("everything was removed\n"), "it waits for a run"
    assert snapshot(pulled.prefix) == {}


def test_remove_leaves_nothing(pulled: PulledHost, port: int) -> None:
    pulled.site.publish([page(), web(pulled.simulated)])
    pulled.install()
    pulled.at("/var/lib/gpu-fleet/incoming.killed").mkdir()  # of a run that ended by SIGKILL
    run = pulled.pull("--remove")
    assert run.code == 0, run.said
    assert snapshot(pulled.prefix) == {}
    with pytest.raises(OSError):
        _answer(port)


@pytest.mark.parametrize("emptied", ["converge", "lib/converge.pyz"])
def test_a_damaged_program_removes_nothing_and_says_so_and_a_pull_repairs_it(pulled: PulledHost, emptied: str) -> None:
    pulled.site.publish([page()])
    pulled.install()
    (pulled.at("/var/lib/gpu-fleet/current") / emptied).write_bytes(b"")
    before = pulled.simulated.snapshot()
    run = pulled.pull("--remove")
    assert run.code != 0
    assert "everything was removed" not in run.said
    assert "ended without a result; run gpu-fleet-pull once to restore it" in run.said, run.said
    assert pulled.simulated.snapshot() == before
    assert pulled.pull().code == 0
    run = pulled.pull("--remove")
    assert (run.code, "everything was removed" in run.said) == (0, True), run.said
    assert snapshot(pulled.prefix) == {}


def test_an_apply_with_exit_code_0_but_no_result_is_no_success(pulled: PulledHost, tmp_path: Path) -> None:
    pulled.site.publish([page()])
    pulled.install()
    pulled.site.publish([page("new\n")])
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "sh").write_text(f'#!/bin/sh\ncase "$2" in apply) exit 0 ;; esac\nexec {shutil.which("sh")} "$@"\n')
    (programs / "sh").chmod(0o755)
    path, pulled.path = pulled.path, f"{programs}:{pulled.path}"
    run = pulled.pull()
    assert run.code == 1
    assert "the converge program ended without a result" in run.said, run.said
    pulled.path = path
    assert pulled.pull().code == 0
    assert pulled.at("/etc/page/index.html").read_text() == "new\n"


def test_a_publication_with_another_name_renames_and_removes_nobody(pulled: PulledHost) -> None:
    """Who the host is was given on the host, and no publication is about one host."""
    pulled.site.publish([page()])
    pulled.install()
    before = pulled.simulated.snapshot()
    pulled.site.publish([page()], settings={"GPU_FLEET_INSTANCE": "node-007"})
    run = pulled.pull()
    assert (run.code, run.said.rstrip().endswith("nothing to do")) == (0, True), run.said
    assert pulled.values()["GPU_FLEET_INSTANCE"] == "gpu-node-007"
    assert pulled.simulated.snapshot() == before


def test_a_host_that_is_installed_again_under_another_name_keeps_what_it_has(pulled: PulledHost) -> None:
    pulled.site.publish([page()])
    pulled.install()
    before = pulled.simulated.snapshot()
    run = pulled.run(pulled.installer("--instance", "node-007"))
    assert run.code == 0, run.said
    assert pulled.values()["GPU_FLEET_INSTANCE"] == "node-007"
    after = pulled.simulated.snapshot()
    assert {path for path in before if before[path] != after.get(path)} == {"etc/gpu-fleet/gpu-fleet.env"}
    assert pulled.pull().said.rstrip().endswith("nothing to do")


def test_what_was_seen_last_is_on_disk_before_it_counts(pulled: PulledHost, tmp_path: Path) -> None:
    """An empty version would let an old copy pass for a new one."""
    pulled.site.publish([page()])
    pulled.install()
    pulled.first = deadly(tmp_path / "recorded", 0)
    pulled.site.publish([page("new\n")])
    assert pulled.pull().code == 0
    version, good = (pulled.at(f"/var/lib/gpu-fleet/pull/{name}") for name in ("version", "good"))
    calls = (tmp_path / "recorded/calls").read_text().splitlines()
    assert calls.index(f"sync {version}.new") < calls.index(f"rename {version}.new -> {version}")
    kept = next(number for number, call in enumerate(calls) if call.startswith("rename ") and call.endswith(f" -> {good}"))
    assert any(call.startswith("sync ") and call.endswith("/newest/settings") for call in calls[:kept])
    assert f"sync {good.parent}" in calls[kept:]


def test_without_an_installation_the_command_says_so(pulled: PulledHost) -> None:
    pulled.site.publish([page()])
    pulled.install()
    program = pulled.simulated.directory / "kept/opt/gpu-fleet"
    shutil.copytree(pulled.at("/opt/gpu-fleet"), program)
    for option in ((), ("--status",), ("--check",), ("--remove",)):
        run = pulled.run([str(program / "bin/gpu-fleet-pull"), *option])
        assert (run.code, run.said) == (3, "gpu-fleet is not installed on this host\n")


def test_a_host_that_push_takes_over_stops_pulling(pulled: PulledHost) -> None:
    pulled.site.publish([page()])
    pulled.install()
    pulled.simulated.settings["GPU_FLEET_STACK"] = "us-west/training"
    apply = pulled.simulated.apply([page(), Pull().part()])
    assert apply.statuses["pull"] == "removed"
    assert not pulled.program.exists() and not pulled.at("/var/lib/gpu-fleet/pull").exists()


@pytest.mark.parametrize("cause", ["changed", "killed"])
def test_the_loop_under_supervisor_repairs_even_supervisor_itself(pulled: PulledHost, tmp_path: Path, cause: str) -> None:
    """A changed configuration of supervisord stops everything it runs, the loop that repairs it among them."""
    trigger = tmp_path / "trigger"
    sleep = f"while not os.path.exists({str(trigger)!r}): pause(0.1)\n    os.unlink({str(trigger)!r})"
    pulled.python = pulled.beginning_with(
        f"import os, time\npause = time.sleep\ndef sleep(_):\n    {sleep}\ntime.sleep = sleep\n"
    )
    pulled.site.publish([page()])
    pulled.install()
    supervisord = pulled.at("/run/gpu-fleet/supervisord.pid")
    before = supervisord.read_text()
    if cause == "changed":
        pulled.at("/etc/gpu-fleet/supervisord.conf").write_text("# by hand\n")
    else:
        os.kill(int(before), signal.SIGKILL)
    trigger.touch()
    status = pulled.at("/var/lib/gpu-fleet/pull/status")
    deadline = time.monotonic() + 300
    while "repaired" not in status.read_text() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert "2 parts repaired" in status.read_text(), "supervisord's configuration, and the loop it is running"
    assert supervisord.read_text() != before
    commands = [_command(process) for process in Path("/proc").glob("[0-9]*")]
    assert sum(f"{pulled.prefix}/" in command and command.endswith("--loop") for command in commands) == 1
    assert pulled.pull().said.rstrip().endswith("nothing to do")


def _command(process: Path) -> str:
    try:
        return (process / "cmdline").read_text().rstrip("\0")
    except OSError:
        return ""
