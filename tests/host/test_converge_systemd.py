"""What is asked of systemd, by a systemctl that records it; drift of units; timers."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_fleet.host.part import File, FileCheck, HttpCheck, Part, Unit
from tests.host.hosts import SUPERVISORD, SimulatedHost, page, snapshot, web

UNIT = "gpu-fleet-job"
ASKING = ("show", "is-enabled", "reset-failed")


@pytest.fixture
def host(host: SimulatedHost, tmp_path: Path) -> SimulatedHost:
    host.settings = {"GPU_FLEET_SERVICE_MANAGER": "systemd"}
    programs = tmp_path / "programs"
    programs.mkdir()
    fake = Path(__file__).with_name("fake_systemctl.py")
    (programs / "systemctl").write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {fake} "$@"\n')
    # Which containers a daemon-reload would harm is asked in a unit of its own; tests/hosts has the real answers.
    (programs / "systemd-run").write_text(f"#!/bin/sh\ncat {tmp_path}/containers 2>/dev/null || :\n")
    (programs / "journalctl").write_text('#!/bin/sh\necho "journal of $*"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    host.at("/etc/systemd/system").mkdir(parents=True)
    (tmp_path / "units").symlink_to(host.at("/etc/systemd/system"))
    host.path = f"{programs}:{host.path}"
    host.environment = {"GPU_FLEET_FAKE_SYSTEMD": str(tmp_path)}
    return host


def _job(host: SimulatedHost, start: str = "/opt/gpu-fleet/libexec/job", *, timer: bool = False, text: bytes = b"job") -> Part:
    rootfs = host.directory / "rootfs"
    files = {
        f"etc/systemd/system/{UNIT}.service": f"[Service]\nExecStart={start}\n",
        f"etc/systemd/system/{UNIT}.timer": "[Timer]\nOnCalendar=hourly\n[Install]\nWantedBy=timers.target\n",
        f"etc/gpu-fleet/supervisor.d/{UNIT}.conf": f"[program:{UNIT}]\n",
    }
    for path, content in files.items():
        (rootfs / path).parent.mkdir(parents=True, exist_ok=True)
        (rootfs / path).write_text(content)
    return Part(
        name="job",
        files=(File(path="/opt/gpu-fleet/libexec/job", content=text), File(path="/etc/job/rules", content=text)),
        units=(Unit(name=UNIT, timer=timer, restart_on=("/opt/gpu-fleet/libexec/job",), reload_on=("/etc/job/rules",)),),
    )


def test_a_systemd_that_is_too_old_is_refused_before_anything_is_placed_and_a_removal_is_not(host: SimulatedHost) -> None:
    host.apply([_job(host)])
    placed = host.at("/opt/gpu-fleet"), host.at("/etc")
    before = [snapshot(directory) for directory in placed]
    host.environment["GPU_FLEET_FAKE_SYSTEMD_VERSION"] = "219"  # RHEL 7
    error = host.run("apply", [_job(host, text=b"new")]).error("host")
    assert error["code"] == "unsupported" and "systemd 219; 239 or newer is needed" in error["message"]
    assert [snapshot(directory) for directory in placed] == before
    host.remove()


def _asked(host: SimulatedHost) -> list[str]:
    """What was asked of systemd since the last time, except for questions."""
    calls = host.directory / "calls"
    asked = [call for call in calls.read_text().splitlines() if not call.startswith(ASKING)] if calls.exists() else []
    calls.unlink(missing_ok=True)
    return asked


def _change(host: SimulatedHost, unit: str = f"{UNIT}.service", **values: object) -> None:
    store = host.directory / "state"
    state = json.loads(store.read_text())
    state[unit] |= {"said": "", **values}
    store.write_text(json.dumps(state))


def test_a_first_apply_enables_and_starts_and_a_second_asks_nothing(host: SimulatedHost) -> None:
    host.apply([_job(host)])
    assert _asked(host) == [f"--quiet --root=/ enable {UNIT}.service", f"restart {UNIT}.service"]
    assert host.apply([_job(host)]).result["changed"] == 0
    assert _asked(host) == []
    assert host.check().code == 0
    assert not host.at("/etc/gpu-fleet/supervisord.conf").exists(), "a host with systemd gets nothing of supervisor's"
    assert not host.at("/run").exists()


def test_a_changed_unit_file_is_read_and_its_unit_restarted(host: SimulatedHost) -> None:
    host.apply([_job(host)])
    _asked(host)
    host.apply([_job(host, "/opt/gpu-fleet/libexec/job --more")])
    assert _asked(host) == [f"--quiet --root=/ enable {UNIT}.service", "daemon-reload", f"restart {UNIT}.service"]


def test_a_changed_program_restarts_without_a_daemon_reload(host: SimulatedHost) -> None:
    host.apply([_job(host)])
    _asked(host)
    part = _job(host)
    host.apply([Part(name="job", files=(File(path=part.files[0].path, content=b"new"), part.files[1]), units=part.units)])
    assert _asked(host) == [f"--quiet --root=/ enable {UNIT}.service", f"restart {UNIT}.service"]


def test_a_file_that_is_reloaded_reloads(host: SimulatedHost) -> None:
    host.apply([_job(host)])
    _asked(host)
    part = _job(host)
    host.apply([Part(name="job", files=(part.files[0], File(path="/etc/job/rules", content=b"new")), units=part.units)])
    assert _asked(host) == [f"--quiet --root=/ enable {UNIT}.service", f"reload-or-restart {UNIT}.service"]


def test_a_new_name_restarts_what_reads_the_name_alone(host: SimulatedHost) -> None:
    part = _job(host)
    for cause, restarts in (("identity", True), ("settings", False)):
        parts = [replace(part, units=(replace(part.units[0], restart_on=(cause,)),))]
        host.settings |= {"GPU_FLEET_INSTANCE": "gpu-007", "GPU_FLEET_ALLOY_LISTEN": "127.0.0.1:1"}
        host.apply(parts)
        _asked(host)
        host.settings["GPU_FLEET_INSTANCE"] = "node-007"
        host.apply(parts)
        assert (f"restart {UNIT}.service" in _asked(host)) == restarts, cause
        host.settings["GPU_FLEET_ALLOY_LISTEN"] = "127.0.0.1:2"
        host.apply(parts)
        assert (f"restart {UNIT}.service" in _asked(host)) != restarts, cause
        values = host.at("/etc/gpu-fleet/gpu-fleet.env")
        values.write_text(values.read_text().replace('"127.0.0.1:2"', '"127.0.0.1:3"'))
        host.apply(parts)
        assert (f"restart {UNIT}.service" in _asked(host)) != restarts, "what was edited by hand may be what it runs with"


def test_a_reload_that_fails_fails_its_part_and_the_old_file_comes_back(host: SimulatedHost) -> None:
    host.apply([_job(host)])
    part = _job(host)
    systemctl = host.directory / "programs" / "systemctl"
    systemctl.write_text(systemctl.read_text().replace("exec ", "case $1 in reload-or-restart) exit 1 ;; esac\nexec "))
    run = host.run("apply", [replace(part, files=(part.files[0], File(path="/etc/job/rules", content=b"broken")))])
    error = run.error("job")
    assert error["code"] == "service-failed" and "did not accept its new configuration" in error["message"], error
    assert error["log"] == [f"journal of --quiet --no-pager --output=cat --lines=20 --unit={UNIT}.service"]
    assert host.at("/etc/job/rules").read_bytes() == b"job"


def test_a_timer_is_enabled_instead_of_its_service(host: SimulatedHost) -> None:
    host.apply([_job(host, timer=True)])
    assert _asked(host) == [f"--quiet --root=/ enable {UNIT}.timer", f"restart {UNIT}.timer"]
    timer = host.at(f"/etc/systemd/system/{UNIT}.timer")
    timer.write_text(timer.read_text().replace("hourly", "yearly"))
    assert host.check().drift("job") == [
        f"file /etc/systemd/system/{UNIT}.timer: content differs",
        f"service {UNIT}: has a unit file that systemd has not read",
    ]
    host.apply([_job(host, timer=True)])
    assert host.check().code == 0


# What else people change is in tests/hosts/by_hand.yaml, for a real systemd.
DRIFTS: dict[str, tuple[Callable[[SimulatedHost], object], str]] = {
    "failed": (lambda host: _change(host, active="failed"), f"service {UNIT}: is not running (failed)"),
    "enabled until the next boot": (lambda host: _change(host, enabled="enabled-runtime"), f"service {UNIT}: is enabled-runtime"),
    "disabled, with an alias": (lambda host: _change(host, enabled="indirect"), f"service {UNIT}: is indirect"),
    "disabled and stopped": (
        lambda host: _change(host, enabled=False, active="inactive"),
        f"service {UNIT}: is disabled and is not running (dead)",
    ),
}


@pytest.mark.parametrize("kind", DRIFTS)
def test_drift_of_a_unit_is_found_and_repaired(host: SimulatedHost, kind: str) -> None:
    host.apply([_job(host), page()])
    make, expected = DRIFTS[kind]
    make(host)
    check = host.check()
    assert check.code == 4
    assert expected in check.drift("job")
    assert check.statuses["page"] == "unchanged"
    host.apply([_job(host), page()])
    assert host.check().code == 0


@pytest.mark.parametrize("directory", ["/etc/systemd/system/gpu-fleet-.service.d", "/usr/local/lib/systemd/system/{}.service.d"])
def test_an_override_of_all_our_services_is_removed_and_all_of_them_restart(host: SimulatedHost, directory: str) -> None:
    host.apply([_job(host)])
    _asked(host)
    override = host.at(f"{directory.format(UNIT)}/user.conf")
    override.parent.mkdir(parents=True)
    override.write_text("[Service]\nUser=root\n")
    path = f"/{override.relative_to(host.prefix)}"
    _change(host, **{"drop-in": str(override)})  # which systemd has read
    assert host.check().drift("job") == [f"file {path}: foreign file in our directory"]
    host.apply([_job(host)])
    assert _asked(host)[1:] == ["daemon-reload", f"restart {UNIT}.service"], "the process that runs was started as root"
    assert host.check().code == 0 and host.apply([_job(host)]).result["changed"] == 0


def test_an_override_of_both_units_of_a_part_is_removed_once(host: SimulatedHost) -> None:
    """As of Alloy's part, where the site's own exporters are adopted and no other part has units."""
    part = _job(host)
    both = replace(part, units=(*part.units, Unit(name="gpu-fleet-other", restart_on=())))
    rootfs = host.directory / "rootfs"
    for directory, kind in (("etc/gpu-fleet/supervisor.d", "conf"), ("etc/systemd/system", "service")):
        text = (rootfs / directory / f"{UNIT}.{kind}").read_text()
        (rootfs / directory / f"gpu-fleet-other.{kind}").write_text(text.replace(f":{UNIT}]", ":gpu-fleet-other]"))
    host.apply([both])
    override = host.at("/etc/systemd/system/gpu-fleet-.service.d/user.conf")
    override.parent.mkdir()
    override.write_text("[Service]\nUser=root\n")
    assert host.check().drift("job") == ["file /etc/systemd/system/gpu-fleet-.service.d/user.conf: foreign file in our directory"]
    host.apply([both])
    assert host.check().code == 0


@pytest.mark.parametrize(
    ("path", "text", "changed"),
    [
        ("/usr/lib/systemd/system/service.d/10-timeout-abort.conf", "[Service]\nTimeoutStopFailureMode=abort\n", ""),
        ("/run/systemd/system/service.d/zzz-lxc-service.conf", "[Service]\nProtectProc=default\nNoNewPrivileges=no\n", ""),
        ("/etc/systemd/system/service.d/proxy.conf", "[Service]\n# User=\nEnvironment=HTTP_PROXY=http://proxy:3128\n", ""),
        (
            "/etc/systemd/system/service.d/root.conf",
            "[Service]\n User = root\nUser=root\nMemoryMax=9M\nNice=1\n",
            "User, MemoryMax",
        ),
        ("/usr/lib/systemd/system/gpu-.service.d/limit.conf", "[Unit]\nConditionHost=a\n", "ConditionHost"),
        (f"/usr/lib/systemd/system/{UNIT}.service.d/site.conf", "[Service]\nNice=5\n", "Nice"),
    ],
)
def test_a_drop_in_of_others_that_changes_what_ours_does_is_named_and_stays(
    host: SimulatedHost, path: str, text: str, changed: str
) -> None:
    host.apply([_job(host)])
    host.at(path).parent.mkdir(parents=True)
    host.at(path).write_text(text)
    _change(host, dropins=path)
    check, apply = host.check(), host.apply([_job(host)])
    if changed:
        said = f"is changed by {path} ({changed}), which is not ours and stays; remove it, or except our services from it"
        assert check.drift("job") == [f"service {UNIT}: {said}"]
        assert f"service {UNIT} {said}" in apply.stderr
    else:
        assert check.code == 0
    assert apply.result["changed"] == 0 and host.at(path).read_text() == text


def _units(tmp_path: Path) -> dict[str, tuple[bool, str]]:
    """Enabled, and active."""
    return {name: (unit["enabled"], unit["active"]) for name, unit in json.loads((tmp_path / "state").read_text()).items()}


def test_a_timer_becomes_a_service_of_the_same_name(host: SimulatedHost, tmp_path: Path) -> None:
    host.apply([_job(host, timer=True)])
    assert _units(tmp_path)[f"{UNIT}.timer"] == (True, "active")
    apply = host.apply([_job(host)])
    assert f"timer {UNIT}: no longer wanted" in apply.changes("job")
    assert _units(tmp_path)[f"{UNIT}.timer"] == (False, "inactive"), "a link to a file that is gone would be left"
    assert _units(tmp_path)[f"{UNIT}.service"] == (True, "active")
    assert not host.at(f"/etc/systemd/system/{UNIT}.timer").exists()
    assert host.check().code == 0 and host.apply([_job(host)]).result["changed"] == 0


def test_a_service_that_does_not_start_leaves_the_timer_that_it_was_to_replace(host: SimulatedHost, tmp_path: Path) -> None:
    host.apply([_job(host, timer=True)])
    apply = host.run("apply", [_job(host, "/bin/false")])
    assert apply.error("job")["message"].endswith("the previous version runs again")
    assert _units(tmp_path)[f"{UNIT}.timer"] == (True, "active")
    assert _units(tmp_path)[f"{UNIT}.service"][0] is False, "what the timer starts is not started at boot"
    assert host.at(f"/etc/systemd/system/{UNIT}.timer").exists()
    assert host.run("apply", [_job(host, timer=True)]).code == 0


def test_a_disabled_unit_is_enabled_without_a_reload(host: SimulatedHost) -> None:
    host.apply([_job(host)])
    _asked(host)
    _change(host, enabled=False)
    assert host.check().drift("job") == [f"service {UNIT}: is disabled"]
    host.apply([_job(host)])
    assert _asked(host) == [f"--quiet --root=/ enable {UNIT}.service", f"start {UNIT}.service"]
    assert host.check().code == 0, "systemd repeats what it once said"


def test_a_masked_unit_is_read_once_more(host: SimulatedHost) -> None:
    host.apply([_job(host)])
    _asked(host)
    _change(host, masked=True, **{"mask known": True})
    host.apply([_job(host)])
    unmasks = [f"--root=/ unmask {UNIT}.service", f"--root=/ unmask --runtime {UNIT}.service"]
    assert _asked(host) == [*unmasks, f"--quiet --root=/ enable {UNIT}.service", "daemon-reload", f"start {UNIT}.service"]


def test_what_systemd_reports_of_all_units_is_no_drift_of_ours(host: SimulatedHost) -> None:
    host.apply([_job(host)])
    _asked(host)
    (host.directory / "all-changed").touch()  # 255 and newer, after `systemctl --no-reload enable` of any unit
    assert host.check().code == 0 and host.apply([_job(host)]).result["changed"] == 0
    host.apply([_job(host, "/opt/gpu-fleet/libexec/job --more")])
    assert "daemon-reload" in _asked(host)


TRAINING = "Docker container 062d7d650a30 (training-7)"


def _harm(host: SimulatedHost, *containers: str) -> None:
    (host.directory / "containers").write_text("".join(f"{each}\n" for each in containers))


def test_a_reload_that_would_take_the_gpus_of_a_container_is_left_to_the_site(host: SimulatedHost) -> None:
    unit, program = host.at(f"/etc/systemd/system/{UNIT}.service"), host.at("/opt/gpu-fleet/libexec/job")
    _harm(host, TRAINING)
    host.apply([_job(host), page()])
    assert "daemon-reload" not in _asked(host), "a first installation needs none"
    before = json.loads((host.directory / "state").read_text())[f"{UNIT}.service"]["run"]
    newer = [_job(host, "/opt/gpu-fleet/libexec/job --more", text=b"newer"), page("changed\n")]
    runs_on = f"service {UNIT}: runs on as it is, because `systemctl daemon-reload` would take the GPUs from {TRAINING}"
    assert host.run("plan", newer).changes("job")[-1] == runs_on
    apply = host.run("apply", newer)
    error = apply.error("job")
    assert error["code"] == "gpus-in-use" and f"would take the GPUs from {TRAINING}: " in error["message"], error
    assert "Run `sudo systemctl daemon-reload`" in error["message"] and "`up` again" in error["message"]
    assert apply.statuses["page"] == "changed", "everything else of the host goes on"
    assert unit.read_text() == "[Service]\nExecStart=/opt/gpu-fleet/libexec/job --more\n"
    assert program.read_bytes() == b"job", "the service that runs keeps all that it had"
    assert _asked(host) == []
    assert host.check().drift("job")[-1] == f"service {UNIT}: has a unit file that systemd has not read"
    again = host.run("apply", newer)
    assert again.error("job") == error and _asked(host) == []
    subprocess.run(["systemctl", "daemon-reload"], env={"PATH": host.path, **host.environment}, check=True)  # the site's own
    _asked(host)
    host.apply(newer)
    assert _asked(host) == [f"--quiet --root=/ enable {UNIT}.service", f"restart {UNIT}.service"]
    assert program.read_bytes() == b"newer" and host.check().code == 0
    assert json.loads((host.directory / "state").read_text())[f"{UNIT}.service"]["run"] != before


def test_a_removal_never_takes_the_gpus_of_a_container(host: SimulatedHost) -> None:
    host.apply([_job(host)])
    subprocess.run(["systemctl", "daemon-reload"], env={"PATH": host.path, **host.environment}, check=True)
    _asked(host)
    _harm(host, TRAINING)
    removed = host.remove()
    assert removed.code == 0 and "daemon-reload" not in _asked(host)
    assert f"would take the GPUs from {TRAINING}" in removed.stderr
    assert snapshot(host.prefix).keys() == {"etc", "etc/systemd", "etc/systemd/system"}


def test_our_own_exporters_container_is_started_again_after_a_reload(host: SimulatedHost) -> None:
    host.apply([_job(host)])
    _harm(host, "Docker container 0123456789ab (gpu-fleet-dcgm-exporter)")
    _asked(host)
    host.apply([_job(host, "/opt/gpu-fleet/libexec/job --more")])
    assert _asked(host)[1:] == ["daemon-reload", "try-restart gpu-fleet-dcgm-exporter.service", f"restart {UNIT}.service"]


def test_a_host_that_cannot_be_asked_is_not_reloaded(host: SimulatedHost) -> None:
    host.apply([_job(host)])
    asks = host.directory / "programs/systemd-run"
    asks.write_text("#!/bin/sh\necho 'Failed to start transient service unit: Connection timed out' >&2\nexit 1\n")
    _asked(host)
    error = host.run("apply", [_job(host, "/opt/gpu-fleet/libexec/job --more")]).error("job")
    assert "looking for them failed (Failed to start transient service unit: Connection timed out)" in error["message"]
    assert _asked(host) == []


def test_a_unit_that_does_not_start_is_put_back_and_named_with_its_journal(host: SimulatedHost) -> None:
    host.apply([_job(host)])
    apply = host.run("apply", [_job(host, "/bin/false")])
    assert apply.code == 1
    error = apply.error("job")
    assert error["code"] == "service-failed"
    last_words = f"journal of --quiet --no-pager --output=cat --lines=200 --unit={UNIT}.service _TRANSPORT=stdout"
    assert error["message"] == f"service {UNIT} does not keep running: {last_words}; the previous version runs again"
    assert error["log"] == [f"journal of --quiet --no-pager --output=cat --lines=20 --unit={UNIT}.service"]
    assert "ExecStart=/opt/gpu-fleet/libexec/job\n" in host.at(f"/etc/systemd/system/{UNIT}.service").read_text()


# Of systemd 252 and 257: the service manager could not start the program, which therefore said nothing.
NAMESPACE = f"""Started {UNIT}.service.
{UNIT}.service: Failed to set up mount namespacing: /run/systemd/unit-root/nowhere: No such file or directory
{UNIT}.service: Failed at step NAMESPACE spawning /opt/gpu-fleet/libexec/job: No such file or directory
{UNIT}.service: Main process exited, code=exited, status=226/NAMESPACE
{UNIT}.service: Failed with result 'exit-code'."""
EXEC = f"""Started {UNIT}.service.
{UNIT}.service: Main process exited, code=exited, status=203/EXEC
{UNIT}.service: Failed with result 'exit-code'."""


@pytest.mark.parametrize(
    ("status", "journal", "mounted", "words"),
    [
        (
            226,
            NAMESPACE,
            "rw,nosuid",
            "Failed to set up mount namespacing: /run/systemd/unit-root/nowhere: No such file or directory "
            "(status 226/NAMESPACE)",
        ),
        (203, EXEC, "rw,nosuid,noexec", "(status 203/EXEC); /opt/gpu-fleet is on a file system that is mounted noexec"),
    ],
)
def test_what_kept_systemd_from_starting_a_program_is_in_the_error(
    host: SimulatedHost, tmp_path: Path, status: int, journal: str, mounted: str, words: str
) -> None:
    (tmp_path / "journal").write_text(journal)
    programs = tmp_path / "programs"
    # The program has run before: what it said then is not the cause.
    before = "echo 'level=ERROR of last week'"
    (programs / "journalctl").write_text(
        f'#!/bin/sh\ncase "$*" in *_TRANSPORT=stdout*) {before} ;; *) cat {tmp_path}/journal ;; esac\n'
    )
    (programs / "findmnt").write_text(f"#!/bin/sh\necho {mounted}\n")
    (programs / "findmnt").chmod(0o755)
    error = host.run("apply", [_job(host, f"/bin/false {status}")]).error("job")
    assert error["message"].startswith(f"service {UNIT} does not keep running: {words}")


def test_a_label_of_selinux_that_keeps_systemd_from_starting_a_program_is_in_the_error(
    host: SimulatedHost, tmp_path: Path
) -> None:
    """node_exporter issue 2738: a path for which the policy has no label of programs, as of a link to another disk."""
    (tmp_path / "journal").write_text(EXEC)
    programs = tmp_path / "programs"
    (programs / "journalctl").write_text(f'#!/bin/sh\ncase "$*" in *_TRANSPORT=stdout*) ;; *) cat {tmp_path}/journal ;; esac\n')
    host.run_first("import os\nos.getxattr = lambda *_, **more: b'system_u:object_r:default_t:s0\\0'\n")
    error = host.run("apply", [_job(host, "/bin/false 203")]).error("job")
    assert "(status 203/EXEC); SELinux: " in error["message"]
    assert "/opt/gpu-fleet/libexec/run has the label default_t, expected bin_t: restorecon" in error["message"]


def test_a_unit_that_starts_again_and_again_is_not_waited_for_as_long_as_a_slow_one(host: SimulatedHost) -> None:
    slow = HttpCheck(url="http://127.0.0.1:9/", within_s=600)
    apply = host.run("apply", [replace(_job(host, "/bin/loops"), checks=(slow,))])  # which ends after two minutes at most
    assert f"service {UNIT} does not keep running" in apply.error("job")["message"]


def test_a_unit_that_lacks_a_download_says_what_it_said_itself(host: SimulatedHost) -> None:
    error = host.run("apply", [_job(host, "/bin/false 13")]).error("job")
    assert error["code"] == "download"
    said = f"journal of --quiet --no-pager --output=cat --lines=200 --unit={UNIT}.service _TRANSPORT=stdout"
    assert error["message"].startswith(said), error


def test_a_file_that_lacks_what_a_check_looks_for_says_itself_why(host: SimulatedHost) -> None:
    host.at("/run").mkdir()
    host.at("/run/job").write_text("success 0\n# says: no GPU\n")
    job = replace(_job(host), checks=(FileCheck(path="/run/job", contains="success 1", within_s=1),))
    assert "/run/job does not contain success 1: no GPU (waited 1 s)" in host.run("apply", [job]).error("job")["message"]


def test_a_file_that_is_not_written_is_named_with_what_its_writer_said_last(host: SimulatedHost, tmp_path: Path) -> None:
    (tmp_path / "programs/journalctl").write_text("#!/bin/sh\necho 'nvidia-smi: no devices were found'\n")
    job = replace(_job(host, timer=True), checks=(FileCheck(path="/run/job", within_s=1),))
    said = "/run/job is missing (waited 1 s): nvidia-smi: no devices were found; "
    assert said in host.run("apply", [job]).error("job")["message"]
    host.at("/run").mkdir(exist_ok=True)
    host.at("/run/job").write_text("success 0\n# says: nvidia-smi: no devices were found\n")
    job = replace(job, checks=(FileCheck(path="/run/job", contains="success 1", within_s=1),))
    assert host.run("apply", [job]).error("job")["message"].count("no devices were found") == 1


def test_a_unit_that_is_pulling_what_it_runs_gets_the_time_for_it(host: SimulatedHost, tmp_path: Path) -> None:
    job = replace(_job(host), checks=(FileCheck(path="/run/job", within_s=1),))
    assert host.run("apply", [job]).error("job")["code"] == "service-failed"
    host.at("/run").mkdir(exist_ok=True)
    done = f'[ "$(grep -c . {tmp_path}/asked)" -lt 2 ] || echo >"{host.at("/run/job")}"'
    said = f"#!/bin/sh\necho 'pulling registry.example.com/image'\necho >>{tmp_path}/asked .\n{done}\n"
    (tmp_path / "programs/journalctl").write_text(said)
    host.apply([job])


def test_a_host_that_changes_its_service_manager_keeps_nothing_of_the_old_one(host: SimulatedHost, free_port: int) -> None:
    host.settings = {"GPU_FLEET_SUPERVISORD": str(SUPERVISORD), "WEB_PORT": str(free_port)}
    host.apply([web(host)])
    host.settings["GPU_FLEET_SERVICE_MANAGER"] = "systemd"
    host.apply([web(host, checks=())])
    with pytest.raises(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{free_port}/", timeout=60)
    assert not any("supervisor" in path for path in host.snapshot() if "/log/" not in path)
    assert host.check().code == 0
    del host.settings["GPU_FLEET_SERVICE_MANAGER"]
    host.apply([web(host)])
    assert host.check().code == 0
    assert not any("systemd/system/gpu-fleet" in path for path in host.snapshot())
