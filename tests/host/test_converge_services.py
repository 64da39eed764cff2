"""Services under a real supervisord: started, restarted only when what they use changes, rolled back when they do not come up."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_fleet.host.part import File, HttpCheck, PortCheck
from gpu_fleet.on_host.converge.ports import inodes
from lab.ports import free_ports
from tests.host.hosts import SUPERVISORD, SimulatedHost, golden, page, snapshot, web
from tests.waiting import eventually

URL = "http://127.0.0.1:${WEB_PORT}/"


@pytest.fixture
def host(host: SimulatedHost, free_port: int) -> SimulatedHost:
    """Its supervisorctl only fails: none of these runs needs it."""
    host.settings["WEB_PORT"] = str(free_port)
    programs = host.directory / "supervisor"
    programs.mkdir()
    (programs / "supervisord").symlink_to(SUPERVISORD)
    (programs / "supervisorctl").symlink_to("/bin/false")
    host.settings["GPU_FLEET_SUPERVISORD"] = str(programs / "supervisord")
    return host


def _answer(host: SimulatedHost, port: object = None) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port or host.settings['WEB_PORT']}/", timeout=60) as response:
        return response.read().decode()


def _process(host: SimulatedHost, port: object = None) -> str:
    return re.search(r"process (\d+)", _answer(host, port)).group(1)


def _command_line(process: int) -> bytes:
    """Empty when it has ended, even before its exit status is read."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


def _supervisord(host: SimulatedHost) -> int:
    return int(host.at("/run/gpu-fleet/supervisord.pid").read_text())


def _kill_supervisord(host: SimulatedHost) -> None:
    """Returns when it has ended, which a busy machine takes a moment for."""
    process = _supervisord(host)
    os.kill(process, signal.SIGKILL)
    eventually("the end of supervisord", lambda: not _command_line(process))


def _add_to_unit_file(host: SimulatedHost, line: str) -> None:
    """In what the next bundle is made from."""
    unit = host.directory / "rootfs/etc/gpu-fleet/supervisor.d/gpu-fleet-web.conf"
    unit.write_text(unit.read_text() + line)


def test_what_the_verbs_print_for_a_service(host: SimulatedHost, regen: bool) -> None:
    runs = {"plan": host.run("plan", [web(host)]), "first apply": host.run("apply", [web(host)])}
    runs["second apply: nothing to do"] = host.run("apply", [web(host)])
    runs["check"] = host.check()
    runs["plan of a new program"] = host.run("plan", [web(host, "new")])
    runs["apply of a new program"] = host.run("apply", [web(host, "new")])
    runs["remove"] = host.remove()
    golden("service.jsonl", runs, regen=regen)


def test_only_the_service_that_a_change_touches_restarts(host: SimulatedHost, free_port: int) -> None:
    [other_port] = free_ports(1)
    other = web(host, "other", name="other", port=other_port)
    host.apply([web(host), other])
    process, other_process = _process(host), _process(host, other_port)
    apply = host.apply([web(host, "newer"), other])
    assert "service gpu-fleet-web: to be restarted, because /opt/gpu-fleet/libexec/web changed" in apply.changes("web")
    assert apply.statuses["other"] == "unchanged"
    assert _answer(host).startswith("newer")
    assert _process(host) != process
    assert _process(host, other_port) == other_process


def test_a_changed_setting_restarts_the_services_that_read_it(host: SimulatedHost) -> None:
    host.apply([web(host)])
    process = _process(host)
    host.settings["WEB_COLOUR"] = "red"
    apply = host.apply([web(host)])
    assert apply.changes("host") == ["file /etc/gpu-fleet/gpu-fleet.env: content differs: WEB_COLOUR"]
    assert apply.changes("web") == ["service gpu-fleet-web: to be restarted, because settings changed"]
    assert _process(host) != process


def test_a_service_that_reads_one_setting_goes_on_when_another_changes(host: SimulatedHost) -> None:
    unit = web(host).units[0]
    reads_one = web(host, units=(replace(unit, restart_on=("setting/WEB_COLOUR",)),))
    host.settings["WEB_COLOUR"] = "blue"
    host.apply([reads_one])
    process = _process(host)
    host.settings["OTHER"] = "new"
    apply = host.apply([reads_one])
    assert apply.statuses == {"host": "changed", "web": "unchanged"} and _process(host) == process
    host.settings["WEB_COLOUR"] = "red"
    assert host.run("plan", [reads_one]).changes("web") == [
        "service gpu-fleet-web: to be restarted, because setting/WEB_COLOUR changed"
    ]
    host.apply([reads_one])
    assert _process(host) != process
    process = _process(host)
    file = host.at("/etc/gpu-fleet/gpu-fleet.env")
    file.write_text(file.read_text().replace('"red"', '"by hand"'))
    host.apply([reads_one])
    assert _process(host) != process, "the service may have been started with that"


def test_a_file_of_an_earlier_part_that_appears_or_disappears_restarts_the_service(host: SimulatedHost) -> None:
    rules = File(path="/etc/rules/a", content=b"a")
    extra = page(name="extra", files=(rules,), directories=(), when={"EXTRA": ("yes",)}, settings={"EXTRA": "no"})
    service = web(host)
    unit = service.units[0]
    units = (type(unit)(name=unit.name, restart_on=("/etc/rules/a",)),)
    parts = [extra, web(host, units=units)]
    host.apply(parts)
    host.settings["EXTRA"] = "yes"
    assert host.apply(parts).changes("web") == ["service gpu-fleet-web: to be restarted, because /etc/rules/a changed"]
    host.settings["EXTRA"] = "no"
    assert host.apply(parts).changes("web") == ["service gpu-fleet-web: to be restarted, because /etc/rules/a changed"]
    assert host.apply(parts).result["changed"] == 0


def test_a_reload_keeps_the_process(host: SimulatedHost) -> None:
    program = (
        b"import os, signal, sys\n"
        b"log = os.environ['GPU_FLEET_PREFIX'] + '/var/log/gpu-fleet/reloads'\n"
        b"signal.signal(signal.SIGHUP, lambda *_: open(log, 'a').write('x'))\n"
    )
    base = web(host)
    unit = base.units[0]

    def parts(text: bytes):
        files = (
            base.files[0],
            File(path=base.files[1].path, content=program + base.files[1].content),
            File(path="/etc/web/rules", content=text),
        )
        units = (type(unit)(name=unit.name, restart_on=unit.restart_on, reload_on=("/etc/web/rules",)),)
        return [web(host, files=files, units=units)]

    host.apply(parts(b"one"))
    process = _process(host)
    apply = host.apply(parts(b"two"))
    assert "service gpu-fleet-web: to be reloaded, because /etc/web/rules changed" in apply.changes("web")
    assert _process(host) == process
    assert host.at("/var/log/gpu-fleet/reloads").read_text() == "x"


def test_a_part_that_does_not_come_up_is_put_back_and_named_with_its_log(host: SimulatedHost) -> None:
    host.apply([web(host)])
    before = host.snapshot()
    apply = host.run("apply", [web(host, "broken"), page()])
    assert apply.code == 1
    error = apply.error("web")
    assert error["code"] == "service-failed"
    why = "service gpu-fleet-web does not keep running: the configuration is broken"
    assert error["message"] == f"{why}; the previous version runs again", "the cause in one line"
    assert "the configuration is broken" in error["log"]
    assert apply.statuses["page"] == "changed", "one part's failure must not hold up the others"
    assert _answer(host).startswith("web answers")
    assert host.at("/opt/gpu-fleet/libexec/web").read_bytes() == before["opt/gpu-fleet/libexec/web"][2]
    assert host.check().code == 4, "the host does not match the bundle it was given"
    assert host.apply([web(host, "repaired"), page()]).statuses["web"] == "changed"
    assert host.check().code == 0


def test_what_a_program_writes_when_it_is_started_again_is_not_the_cause(host: SimulatedHost) -> None:
    part = web(host, "broken")
    again = "".join(f"echo time=now level=INFO msg={collector}\n" for collector in range(50))
    program = replace(part.files[0], content=f"#!/bin/sh\necho time=now level=ERROR msg=why\n{again}exit 1\n".encode())
    error = host.run("apply", [replace(part, files=(program, *part.files[1:]))]).error("web")
    assert "does not keep running: time=now level=ERROR msg=why; " in error["message"]


def test_a_new_part_that_does_not_come_up_is_removed_again(host: SimulatedHost) -> None:
    apply = host.run("apply", [page(), web(host, "broken")])
    assert apply.code == 1
    assert apply.error("web")["message"].endswith("what was placed for it was removed")
    assert [path for path in host.snapshot() if "web" in path and "/log/" not in path] == []
    host.remove()
    assert snapshot(host.prefix) == {}


def test_the_reason_why_supervisord_refuses_a_unit_file_is_reported_as_it_is(host: SimulatedHost) -> None:
    host.apply([web(host)])
    part = web(host)
    _add_to_unit_file(host, "stopwaitsecs = <1> & &amp; 2\n")
    assert host.run("apply", [part]).error("web") == {
        "code": "service-failed",
        "message": "supervisord did not read the unit files: ERROR: CANT_REREAD: "
        "invalid literal for int() with base 10: '<1> & &amp; 2' in section 'program:gpu-fleet-web' "
        f"(file: '{host.at('/etc/gpu-fleet/supervisor.d/gpu-fleet-web.conf')}'); the previous version runs again",
    }


def test_a_changed_unit_file_takes_effect(host: SimulatedHost) -> None:
    host.apply([web(host)])
    part = web(host)
    _add_to_unit_file(host, 'environment = WEB_SHAPE="round"\n')
    host.apply([part])
    assert b"WEB_SHAPE=round" in Path(f"/proc/{_process(host)}/environ").read_bytes().split(b"\0")


def test_a_service_that_answers_wrongly_is_named_with_what_was_expected(host: SimulatedHost) -> None:
    part = web(host)
    url = f"http://127.0.0.1:{host.settings['WEB_PORT']}/"
    apply = host.run("apply", [web(host, checks=(HttpCheck(url=url, contains="something else", within_s=10),))])
    assert part.units[0].name == "gpu-fleet-web"
    assert apply.error("web")["message"].startswith(f"{url} responds, but without something else (waited 10 s)")


def test_a_program_built_for_a_newer_system_has_its_own_error(host: SimulatedHost) -> None:
    part = web(host)
    start, program = part.files
    said = 'echo "alloy: libc.so.6: version \\`GLIBC_2.34\' not found (required by alloy)"; exit 1\n'
    apply = host.run("apply", [replace(part, files=(replace(start, content=f"#!/bin/sh\n{said}".encode()), program))])
    error = apply.error("web")
    assert error["code"] == "unsupported"
    assert "service gpu-fleet-web was built for a newer system than this one, which has no GLIBC_2.34" in error["message"]


def test_a_taken_port_is_named_with_who_has_it(host: SimulatedHost) -> None:
    """Whose name any user can choose."""
    name_file = Path("/proc/self/comm")
    name = name_file.read_text().strip()
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", int(host.settings["WEB_PORT"])))
        listener.listen()
        name_file.write_text("\x1b[2Jx\ngpu: fine")
        try:
            apply = host.run("apply", [web(host)])
        finally:
            name_file.write_text(name)
    assert apply.code == 1
    error = apply.error("web")
    assert error["code"] == "port-taken"
    taken = (
        rf"port {host.settings['WEB_PORT']} is in use by process {os.getpid()} \(\?\[2Jxgpu: fine\); stop it, or .*adopt: true"
    )
    assert re.match(taken, error["message"])
    assert "\x1b" not in apply.stderr, "nor does it reach the terminal of who runs this on the host"


def test_a_plan_fails_where_an_apply_would_not_get_its_port_and_a_check_says_who_has_it(host: SimulatedHost) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", int(host.settings["WEB_PORT"])))
        listener.listen()
        plan = host.run("plan", [web(host)])
        assert (plan.code, plan.error("web")["code"]) == (1, "port-taken")
        assert f"in use by process {os.getpid()} " in plan.error("web")["message"]
        assert snapshot(host.prefix) == {}
    host.apply([web(host)])
    for change in ({}, {"name": "other", "when": {"OTHER": ("yes",)}, "settings": {"OTHER": "yes"}}):
        assert host.run("plan", [web(host, **change)]).code == 0, "what runs there is ours"
    _kill_supervisord(host)
    assert host.run("plan", [web(host)]).code == 0, "so is what a killed supervisord has left"
    os.kill(int(_process(host)), signal.SIGKILL)
    eventually("its end", lambda: not inodes(int(host.settings["WEB_PORT"])))
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", int(host.settings["WEB_PORT"])))
        listener.listen()
        drift = host.check().drift("web")
        assert any(f"in use by process {os.getpid()} " in line for line in drift), drift


def test_an_answer_of_another_program_on_the_port_is_not_taken_for_ours(host: SimulatedHost) -> None:
    impostor = subprocess.Popen(
        [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", host.settings["WEB_PORT"]],
        cwd=host.directory,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:

        def listens() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", int(host.settings["WEB_PORT"]))) == 0

        eventually("the other program", listens)
        part = web(host, checks=(HttpCheck(url=URL, within_s=2),))
        assert host.run("apply", [part]).error("web")["code"] == "port-taken"
    finally:
        impostor.kill()
        impostor.wait()


def test_a_server_that_only_its_login_may_ask_is_ready_when_it_listens(host: SimulatedHost) -> None:
    """supervisord calls a program running after a second, and one that reads a key on a busy host dies after that."""
    listens = PortCheck(address="127.0.0.1:${WEB_PORT}", within_s=10)
    assert host.apply([web(host, checks=(listens,))]).statuses["web"] == "changed"
    port = host.settings["WEB_PORT"]
    host.settings["WEB_PORT"] = str(free_ports(1)[0])
    deaf = web(host, port=int(port), checks=(PortCheck(address="127.0.0.1:${WEB_PORT}", within_s=2),))
    apply = host.run("apply", [deaf])
    assert apply.error("web")["code"] == "service-failed"
    assert f"nothing listens on 127.0.0.1:{host.settings['WEB_PORT']}" in apply.error("web")["message"]


@pytest.mark.parametrize("check", [PortCheck(address="127.0.0.1:${WEB_PORT}", within_s=6), HttpCheck(url=URL, within_s=6)])
def test_a_server_that_dies_before_it_listens_says_why(host: SimulatedHost, check: PortCheck | HttpCheck) -> None:
    part = web(host, checks=(check,))
    program, server = part.files
    slow = replace(program, content=b"#!/bin/sh\nsleep 2\necho the key cannot be read >&2\nexit 1\n")
    error = host.run("apply", [replace(part, files=(slow, server))]).error("web")
    assert error["code"] == "service-failed"
    assert ": the key cannot be read; " in error["message"]


def test_what_went_well_in_a_server_that_does_not_answer_is_not_the_cause(host: SimulatedHost) -> None:
    part = web(host, checks=(HttpCheck(url=URL, within_s=2),))
    program = replace(part.files[0], content=b"#!/bin/sh\necho level=INFO msg=listening\nsleep 100\n")
    error = host.run("apply", [replace(part, files=(program, *part.files[1:]))]).error("web")
    assert "/ does not respond (waited 2 s); " in error["message"]


def test_a_program_that_dies_again_and_again_is_not_waited_for_as_long_as_a_slow_one(host: SimulatedHost) -> None:
    """Each time after the first second, in which supervisord counts it; and while it runs, it is what listens on its port."""
    part = web(host, checks=(HttpCheck(url=URL, contains="all is well", within_s=600),))
    program, server = part.files
    dies = b"print('the key cannot be read', flush=True) or os._exit(1)"
    dying = b"import os, threading\nthreading.Timer(1.5, lambda: " + dies + b").start()\n"
    content = dying + server.content.replace(b'"starting"', b'"level=INFO starting"')
    started = time.monotonic()
    error = host.run("apply", [replace(part, files=(program, replace(server, content=content)))]).error("web")
    assert time.monotonic() - started < 300
    assert error["code"] == "service-failed"
    assert error["message"].startswith("service gpu-fleet-web does not keep running: the key cannot be read; ")


def test_a_service_keeps_running_with_the_old_settings_when_the_new_ones_do_not_work(host: SimulatedHost) -> None:
    host.apply([web(host)])
    good_port = host.settings["WEB_PORT"]
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        host.settings["WEB_PORT"] = str(listener.getsockname()[1])
        apply = host.run("apply", [web(host)])
        assert apply.error("web")["code"] == "port-taken"
        assert apply.error("web")["message"].endswith("the previous version runs again")
        assert _answer(host, good_port).startswith("web answers")
    assert host.apply([web(host)]).statuses["web"] == "changed", "the next apply tries the new settings again"
    assert _answer(host).startswith("web answers")


def test_a_stopped_service_is_drift_and_started_again(host: SimulatedHost) -> None:
    host.apply([web(host)])
    control = [
        str(SUPERVISORD.with_name("supervisorctl")),
        "-c",
        str(host.at("/etc/gpu-fleet/supervisord.conf")),
    ]
    environment = {"GPU_FLEET_PREFIX": str(host.prefix)}
    stop = [*control, "stop", "gpu-fleet-web"]
    subprocess.run(stop, cwd=host.at("/run/gpu-fleet"), env=environment, check=True, capture_output=True)
    assert host.check().drift("web") == ["service gpu-fleet-web: is not running (stopped)"]
    assert host.apply([web(host)]).changes("web") == ["service gpu-fleet-web: is not running (stopped)"]
    assert _answer(host).startswith("web answers")


def test_a_killed_supervisord_is_drift_and_its_programs_do_not_block_the_repair(host: SimulatedHost) -> None:
    part = web(host)
    program, server = part.files
    environment = b'#!/bin/sh\n. "$GPU_FLEET_PREFIX/opt/gpu-fleet/libexec/environment"\n'  # as all of our programs start
    part = replace(part, files=(replace(program, content=program.content.replace(b"#!/bin/sh\n", environment)), server))
    host.apply([part])
    process = _process(host)
    _kill_supervisord(host)
    check = host.check()
    assert check.drift("host") == ["supervisor: is not running"]
    assert check.drift("web") == ["service gpu-fleet-web: is not running"]
    host.apply([part])
    assert _process(host) != process, "the program of the killed supervisord holds the port until it is stopped"
    assert host.check().code == 0


def test_a_service_without_its_supervisord_is_removed_all_the_same(host: SimulatedHost) -> None:
    host.apply([web(host)])
    _kill_supervisord(host)
    assert host.remove().code == 0
    with pytest.raises(OSError):
        _answer(host)
    assert snapshot(host.prefix) == {}


def test_a_part_that_is_no_longer_wanted_stops_before_its_successor_takes_the_port(host: SimulatedHost) -> None:
    parts = [
        web(host, "first", name="first", when={"EXPORTER": ("first",)}, settings={"EXPORTER": "first"}),
        web(host, "second", name="second", when={"EXPORTER": ("second",)}),
    ]
    host.apply(parts)
    assert _answer(host).startswith("first")
    host.settings["EXPORTER"] = "second"
    apply = host.apply(parts)
    assert apply.statuses == {"host": "changed", "first": "removed", "second": "changed"}
    assert _answer(host).startswith("second")
    assert host.check().code == 0


def test_a_long_prefix_is_no_obstacle_to_the_socket_of_supervisord(tmp_path: Path, free_port: int) -> None:
    host = SimulatedHost.below(tmp_path, "deep/" * 30 + "host")
    host.settings["WEB_PORT"] = str(free_port)
    try:
        host.apply([web(host)])
        assert host.check().code == 0
        assert _answer(host).startswith("web answers")
    finally:
        host.remove()
        host.stop()


def test_without_a_service_manager_the_error_says_what_to_install(host: SimulatedHost) -> None:
    host.settings["GPU_FLEET_SUPERVISORD"] = "/nonexistent/supervisord"
    apply = host.run("apply", [web(host)])
    assert apply.error("host")["code"] == "unsupported"
    assert "install the supervisor package" in apply.error("host")["message"]


def test_a_single_request_that_takes_too_long_is_no_drift(host: SimulatedHost) -> None:
    """As on a busy host."""
    host.apply([web(host)])
    once = host.directory / "once"
    host.run_first(
        "import pathlib, socket\n"
        "connect = socket.create_connection\n"
        "def slow(*_, **__):\n"
        "    socket.create_connection = connect\n"
        f"    pathlib.Path({str(once)!r}).touch()\n"
        "    raise TimeoutError('timed out')\n"
        "socket.create_connection = slow\n"
    )
    assert host.check().drift("web") == []
    assert once.exists()


def test_a_service_that_runs_and_does_not_answer_is_drift_and_restarted(host: SimulatedHost) -> None:
    host.apply([web(host), page()])
    process = int(_process(host))
    os.kill(process, signal.SIGSTOP)
    check = host.check()
    assert check.code == 4
    assert check.drift("web") == [f"service gpu-fleet-web: http://127.0.0.1:{host.settings['WEB_PORT']}/ does not respond"]
    assert check.statuses["page"] == "unchanged"
    os.kill(process, signal.SIGKILL)  # a stopped process does not end by itself; supervisord starts another one
    eventually("another process of the service", lambda: _responds(host))
    os.kill(int(_process(host)), signal.SIGSTOP)
    assert host.apply([web(host), page()]).statuses["web"] == "changed"
    assert host.check().code == 0


def _responds(host: SimulatedHost) -> bool:
    try:
        return bool(_answer(host))
    except OSError:
        return False


def test_a_clock_that_is_set_while_a_service_starts_ends_no_wait(host: SimulatedHost, tmp_path: Path) -> None:
    """Time synchronization after boot moves the time of day by hours."""
    (tmp_path / "programs").mkdir()
    (tmp_path / "programs/date").write_text(
        f"#!/bin/sh\nn=$(cat '{tmp_path}/n' 2>/dev/null || echo 0); echo $((n + 1)) >'{tmp_path}/n'\n"
        '[ "$*" != +%s ] || { echo $(($(/bin/date +%s) + n * 3600)); exit; }\nexec /bin/date "$@"\n'
    )
    (tmp_path / "programs/date").chmod(0o755)
    host.path = f"{tmp_path / 'programs'}:{host.path}"
    part = web(host)
    slow = [replace(file, content=file.content.replace(b"#!/bin/sh\n", b"#!/bin/sh\nsleep 2.5\n")) for file in part.files]
    host.apply([replace(part, files=tuple(slow))])
