"""The host program as Python runs it: one file, its modules compiled, what is on disk, and what a kill leaves."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from gpu_fleet.host.parts.python import Python
from gpu_fleet.host.program import host_modules, zipped
from gpu_fleet.on_host import dnf
from gpu_fleet.on_host.converge import events
from gpu_fleet.on_host.converge.settings import is_setting
from tests.host.hosts import Run, SimulatedHost, page, path_without, snapshot


def test_what_uses_packages_is_asked_in_the_program(host: SimulatedHost) -> None:
    part = page(name="container-runtime-settings", keep="in_use")
    dockerd = host.directory / "bin/dockerd"
    dockerd.parent.mkdir()
    dockerd.touch(0o755)
    host.path = f"{dockerd.parent}:{host.path}"
    host.apply([part])
    changes = host.run("remove").changes(part.name)
    assert "file /etc/page/index.html: kept, because Docker stays" in changes, changes


# Writes modules of which `main` ends with 77 as this Python would have compiled them.
OTHER = """
import hashlib, marshal, sys
stored, program = sys.argv[1:]
code = compile("def main(*_): return 77", "other", "exec")
modules = marshal.dumps({"on_host.converge.main": (False, code)})
parts = sys.version.encode(), modules, open(program, "rb").read()
open(stored, "wb").write(hashlib.sha256(b"\\0".join(parts)).digest() + modules)
"""


def test_modules_that_an_apply_has_compiled_are_used_if_nobody_else_could_have_written_them(host: SimulatedHost) -> None:
    host.apply([page()])
    program, stored = (host.at(f"/var/lib/gpu-fleet/current/lib/{name}") for name in ("converge.pyz", "compiled"))
    intact = stored.read_bytes()
    for damaged in (intact[:-1], b"", intact[:-1] + b"?"):
        stored.write_bytes(damaged)
        assert host.check().code == 0
    host.apply([page()])
    assert stored.read_bytes() != damaged, "an apply compiles them again"
    python = shutil.which("python3", path=f"/usr/bin:/usr/libexec:/usr/local/bin:{host.path}")
    subprocess.run([str(python), "-c", OTHER, stored, program], check=True)
    assert host.check().code == 77
    stored.chmod(0o666)
    assert host.check().code == 0, "others may have written it"


def test_the_program_is_one_file_with_the_same_bytes_on_any_machine() -> None:
    first, second = zipped(host_modules()), zipped(host_modules())
    assert first == second
    with zipfile.ZipFile(io.BytesIO(first)) as archive:
        infos = archive.infolist()
    assert [info.filename for info in infos] == sorted(info.filename for info in infos)
    assert {(info.date_time, info.create_system, info.compress_type) for info in infos} == {((1980, 1, 1, 0, 0, 0), 3, 0)}
    assert {"__main__.py", "on_host/converge/main.py", "on_host/probe/driver.py", "on_host/tools.py"} <= {
        i.filename for i in infos
    }
    assert not any("__pycache__" in info.filename for info in infos)


def test_what_a_run_reports_as_done_is_on_disk(tmp_path: Path, host: SimulatedHost) -> None:
    """Files before they are renamed to their names, directories before the result; nothing where nothing changes."""
    theirs = host.at("/etc/page/index.html")
    theirs.parent.mkdir(parents=True)
    theirs.write_text("the administrator's\n")
    deadly = tmp_path / "deadly"
    host.kill_at(deadly, 0)
    host.apply([page()])
    calls = (deadly / "calls").read_text().splitlines()
    renamed = {}
    for number, call in enumerate(calls):
        if call.startswith("rename "):
            source, _, target = call.removeprefix("rename ").partition(" -> ")
            renamed[Path(target).name] = number
            # A link, and what is used only where its own digest fits.
            is_safe = "/undo/" in target or target.endswith(("/current", "/compiled"))
            if target.startswith(f"{host.prefix}/") and not is_safe:
                assert any(each.startswith(f"sync {source}") for each in calls[:number]), call
    assert {"placed", "settings", "facts", "digest", "index.html", "gpu-fleet.env"} <= renamed.keys()
    saved = host.at("/var/lib/gpu-fleet/saved/etc/page/index.html")
    assert calls.index(f"sync {saved}") < renamed["index.html"], "an existing file, before ours replaces it"
    assert f"sync {theirs.parent}" in calls[renamed["index.html"] :]
    host.apply([page()])
    assert "sync" not in (deadly / "calls").read_text(), "an apply that changes nothing waits for no disk"
    assert host.remove().code == 0
    assert f"sync {theirs.parent}\n" in (deadly / "calls").read_text(), "their file is back on disk before the run ends"


@pytest.fixture
def without_python(host: SimulatedHost) -> dict[str, str]:
    """The environment of a host that has none; its package manager is apt-get, which fails."""
    versions = [f"python3{minor}" for minor in ("", *(f".{number}" for number in range(8, 15)))]
    (host.directory / "usr").mkdir()
    path = path_without(host.directory / "bin", *versions, "platform-python", "dnf", "apt-get")
    _program(host.directory / "bin/apt-get", 'echo "E: Unable to locate \\"python3\\"" >&2; exit 100\n')
    return {"PATH": path, "GPU_FLEET_ROOT": str(host.directory)}


def _program(path: Path, script: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}")
    path.chmod(0o755)


def _on_whole_host(host: SimulatedHost, verb: str, environment: dict[str, str]) -> Run:
    envelope = host.envelope([page()])
    command = ["sh", envelope / "bundle/converge", verb, "--prefix", "", "--envelope", envelope]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    return Run(done.returncode, done.stdout, done.stderr)


def test_a_host_without_python_is_refused_with_what_to_install_before_anything_is_placed(
    host: SimulatedHost, without_python: dict[str, str]
) -> None:
    done = subprocess.run(host.command("apply", [page()]), env=without_python, capture_output=True, text=True)
    run = Run(done.returncode, done.stdout, done.stderr)
    assert (run.code, run.result["ok"], run.error("host")["code"]) == (1, False, "unsupported")
    assert (
        "no Python 3.8 or newer" in run.error("host")["message"] and "`apt-get install python3`" in run.error("host")["message"]
    )
    assert snapshot(host.prefix) == {}


def test_a_whole_host_without_python_gets_the_distribution_s_and_the_plan_says_so(
    host: SimulatedHost, without_python: dict[str, str]
) -> None:
    plan = _on_whole_host(host, "plan", without_python)
    assert (plan.code, plan.statuses) == (0, {"host": "would-change"})
    assert plan.changes("host")[0].startswith("package python3: to be installed, since this host has no Python 3.8 or newer")
    failed = _on_whole_host(host, "apply", without_python)
    assert (failed.code, failed.error("host")["code"]) == (1, "unsupported")
    assert "it could not be installed: E: Unable to locate python3; nothing was done" in failed.error("host")["message"]
    installed = host.directory / "usr/bin/python3"
    _program(host.directory / "new", 'case $4 in *version_info*) exit 0 ;; esac\necho "$@"\n')
    install = (
        f'[ "$*" = "-qq -y -o DPkg::Lock::Timeout=300 --no-install-recommends install python3" ] && mkdir -p {installed.parent}'
    )
    _program(host.directory / "bin/apt-get", f"{install} && cp {host.directory}/new {installed}\n")
    apply = _on_whole_host(host, "apply", without_python)
    assert (apply.code, apply.stderr) == (0, "host: installing the distribution's Python\n")
    assert "/lib/converge.pyz apply --prefix  --envelope " in apply.stdout


@pytest.mark.parametrize(
    ("said", "code", "fix"),
    [
        ("timeout: failed to run command 'python3': Operation not permitted", "no-write", "fapolicyd or SELinux may deny it"),
        ("PermissionError: [Errno 13] Permission denied: '/usr/lib64/python3.9'", "no-write", "ausearch -m fanotify,avc"),
        ("python3: error while loading shared libraries: libm.so.6: failed to map segment", "limit", "`ulimit -a`; pam_limits"),
    ],
)
def test_a_python_that_may_not_start_is_not_called_missing(
    host: SimulatedHost, without_python: dict[str, str], said: str, code: str, fix: str
) -> None:
    """Nothing is installed beside it, which would not start either."""
    _program(host.directory / "usr/bin/python3", f'echo "Fatal error:" >&2\necho "{said}" >&2\nexit 126\n')
    for verb in ("plan", "apply"):
        run = _on_whole_host(host, verb, without_python)
        error = run.error("host")
        assert (run.code, error["code"]) == (1, code)
        assert f"usr/bin/python3 cannot be started: {said}; " in error["message"] and fix in error["message"]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"GPU_FLEET_PYTHON_INSTALL": "no"}, "install the distribution's (`apt-get install python3`)"),
        ({"GPU_FLEET_PYTHON": "/opt/none/python3"}, "/opt/none/python3, which was given as this host's python"),
    ],
)
def test_nothing_is_installed_where_the_stack_file_says_so(
    host: SimulatedHost, without_python: dict[str, str], settings: dict[str, str], said: str
) -> None:
    host.settings |= settings
    for verb in ("plan", "apply"):
        run = _on_whole_host(host, verb, without_python)
        assert (run.code, run.error("host")["code"]) == (1, "unsupported")
        assert said in run.error("host")["message"] and "could not be installed" not in run.error("host")["message"]


def test_nobody_is_told_to_install_packages_on_an_image(host: SimulatedHost, without_python: dict[str, str]) -> None:
    """kubespray issues 11225 and 10865: Flatcar has no Python, and a /usr that cannot be written."""
    (host.directory / "usr").rmdir()
    for verb in ("plan", "apply"):
        message = _on_whole_host(host, verb, without_python).error("host")["message"]
        assert "in the stack file (`python: /opt/" in message and "apt-get" not in message and "not be installed" not in message


def test_the_python_of_the_stack_file_runs_the_program_and_is_a_fact(host: SimulatedHost) -> None:
    given = host.directory / "given"
    given.symlink_to("/usr/bin/python3")
    host.settings["GPU_FLEET_PYTHON"] = str(given)
    assert host.apply([Python().part()]).facts["GPU_FLEET_PYTHON"] == str(given)
    assert host.check().code == 0
    given.unlink()
    assert f"{given}, which was given" in host.check().error("host")["message"]


def test_a_hostile_environment_changes_nothing(host: SimulatedHost) -> None:
    trap = host.directory / "trap"
    trap.mkdir()
    (trap / "json.py").write_text("raise SystemExit(99)\n")
    host.settings["TRICKY"] = 'a "b" \\ $c `d` é'
    host.environment = {"PYTHONPATH": str(trap), "PYTHONHOME": str(trap), "LANG": "de_DE.UTF-8", "PYTHONSTARTUP": "/dev/full"}
    host.apply([page()])
    assert host.at("/etc/page/index.html").stat().st_mode & 0o777 == 0o644
    host.environment = {}
    assert host.apply([page()]).result["changed"] == 0


def test_what_services_log_becomes_json_whatever_bytes_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    awkward = {
        b'quote " and \\ backslash': 'quote " and \\ backslash',
        b"tab\tbell\x07escape\x1b[0m\x7f": "tab\tbell\x07escape\x1b[0m\x7f",
        "é → 日本 🙂".encode(): "é → 日本 🙂",
        b"latin \xe9 alone, cut \xe2\x86": "latin ? alone, cut ??",
        b"overlong \xc0\x80, surrogate \xed\xa0\x80": "overlong ??, surrogate ???",
    }
    for raw, text in awkward.items():
        events.emit({"text": raw.decode("utf-8", "surrogateescape")})
        said = capsys.readouterr().out
        assert json.loads(said) == {"text": text}
        assert not any(ord(character) < 32 or ord(character) == 127 for character in said.rstrip("\n"))


@pytest.mark.parametrize("line", ["A=tab\there", "A=bell\x07", "1A=x", "A B=x", "no equals sign", "A=x\n", "=x"])
def test_what_sh_and_systemd_would_read_differently_is_no_setting(line: str) -> None:
    assert not is_setting(line)


def test_the_names_in_dnfs_table() -> None:
    table = [
        "Installing:",
        " datacenter-gpu-manager-4-core   x86_64   1:4.2.3-1   cuda   12 M",
        "Installing dependencies:",
        " a-name-that-is-too-long-for-its-column",
        "                                 noarch   1.0-1       base   9 k",
        " glibc32                         i686     2.34        base   9 M",
        "Upgrading:",
        " openssl                         x86_64   3.0         base   9 M",
        "",
        "Transaction Summary",
    ]
    text = "\n".join(table)
    names = ["a-name-that-is-too-long-for-its-column", "datacenter-gpu-manager-4-core", "glibc32.i686"]
    assert (dnf.installs(text, "x86_64"), dnf.replaces(text)) == (names, ["openssl"])
