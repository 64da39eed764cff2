"""The host program in Python, in place of the one in shell: what it prints, what it records, and what a kill leaves of it."""

from __future__ import annotations

import io
import json
import shutil
import signal
import subprocess
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_fleet.host.part import File
from gpu_fleet.host.parts.adoption import Adoption
from gpu_fleet.host.parts.kernel_log import KernelLog
from gpu_fleet.host.parts.python import Python
from gpu_fleet.host.program import host_program
from gpu_fleet.on_host.converge import events
from gpu_fleet.on_host.converge.settings import is_setting
from gpu_fleet.on_host.converge.transaction_rhel import planned_by_dnf
from tests.host import test_converge_files, test_converge_services
from tests.host.hosts import SimulatedHost, page, path_without, snapshot, web
from tests.host.switched import SwitchedHost

STRIDE = 41  # set it to 1 after a change to the order in which things are written: some minutes


@pytest.fixture
def switched(tmp_path: Path, free_port: int) -> Iterator[SwitchedHost]:
    host = SwitchedHost.below(tmp_path, "a host")
    host.settings["WEB_PORT"] = str(free_port)
    yield host
    host.stop()


def test_it_prints_what_the_shell_prints(tmp_path: Path, switched: SwitchedHost) -> None:
    del switched.settings["WEB_PORT"]
    test_converge_files.test_what_the_verbs_print_from_the_first_run_to_the_last(switched, regen=False)


def test_it_prints_of_a_service_what_the_shell_prints(switched: SwitchedHost) -> None:
    test_converge_services.test_what_the_verbs_print_for_a_service(switched, regen=False)


def test_a_host_of_the_program_in_shell_is_adopted_and_given_back_without_a_restart(switched: SwitchedHost) -> None:
    shell = SimulatedHost(directory=switched.directory, prefix=switched.prefix, settings=switched.settings)
    shell.secrets = switched.secrets = {"page-password": "x\\ny"}
    parts = [page(secrets=("page-password",)), web(shell)]
    shell.apply(parts)
    process = test_converge_services._process(shell)
    before = snapshot(shell.prefix, without="var"), _records(shell)
    for host in (switched, shell, switched):
        apply = host.apply(parts)
        assert apply.result["changed"] == 0, apply.stdout
        assert (snapshot(shell.prefix, without="var"), _records(shell)) == before
        assert host.check().code == 0
    assert test_converge_services._process(shell) == process
    assert switched.remove().code == 0
    assert snapshot(shell.prefix) == {}


def _records(host: SimulatedHost) -> dict[str, bytes]:
    return {name: host.at(f"/var/lib/gpu-fleet/{name}").read_bytes() for name in ("placed", "settings", "facts")}


def test_both_programs_record_the_same(tmp_path: Path, switched: SwitchedHost) -> None:
    """Also of what changes, leaves and comes back."""
    records = []
    for host in (SimulatedHost(directory=switched.directory, prefix=switched.prefix, settings=switched.settings), switched):
        host.apply([page(), page(name="leaving", files=())])
        host.apply([page("new\n", files=page().files[:1])])
        records.append(host.at("/var/lib/gpu-fleet/placed").read_text())
        host.remove()
        assert snapshot(host.prefix) == {}
        host.prefix.mkdir(exist_ok=True)
    assert records[0] == records[1]


def test_a_killed_apply_is_finished_by_the_next_one_and_can_be_removed(tmp_path: Path) -> None:
    def fresh() -> SwitchedHost:
        shutil.rmtree(tmp_path / "host", ignore_errors=True)
        return SwitchedHost.below(tmp_path)

    before = [page("old\n"), page(name="leaving", files=(), directories=page().directories)]
    after = [page("new\n", files=page().files[:1])]
    host = fresh()
    host.at("/etc/page").mkdir(parents=True)
    host.at("/etc/page/theirs").write_text("the administrator's\n")
    host.apply(before)
    subprocess.run(["cp", "--archive", host.prefix, tmp_path / "kept"], check=True)
    host.kill_at(tmp_path / "deadly", 0)
    host.apply(after)
    expected, changes = host.snapshot(), int((tmp_path / "deadly/count").read_text())
    assert changes > 20
    for number in range(1, changes, STRIDE):
        host = fresh()
        subprocess.run(["cp", "--archive", "--no-target-directory", tmp_path / "kept", host.prefix], check=True)
        host.kill_at(tmp_path / "deadly", number)
        assert host.run("apply", after).code == -signal.SIGKILL, number
        host.shell = ("sh",)
        host.apply(after)
        assert host.snapshot() == expected, number
        assert host.check().code == 0, number
        host.kill_at(tmp_path / "deadly", number)
        host.remove()
        host.shell = ("sh",)
        assert host.run("remove", after).code in (0, 3), number
        assert {name for name in snapshot(host.prefix) if not name.startswith("var")} == {"etc", "etc/page", "etc/page/theirs"}


def test_probes_run_in_the_program_and_find_what_the_scripts_find(switched: SwitchedHost) -> None:
    parts = [Python().part(), *Adoption().parts(), *KernelLog().parts()]
    shell = SimulatedHost(directory=switched.directory, prefix=switched.prefix, settings=switched.settings)
    facts = shell.run("plan", parts).facts
    assert {"GPU_FLEET_NODE_EXPORTER_REASON", "GPU_FLEET_GPU_EXPORTER_ADOPTED"} <= facts.keys()
    broken = b"#!/bin/sh\nexit 99\n"
    files = tuple(replace(file, content=broken) if file.path.endswith("/probe") else file for file in parts[0].files)
    assert switched.run("plan", [replace(parts[0], files=files), *parts[1:]]).facts == facts


def test_what_uses_packages_is_asked_in_the_program(switched: SwitchedHost) -> None:
    path = "/opt/gpu-fleet/libexec/in-use"
    script = File(path=path, content=b'#!/bin/sh\nexec sh "${0%/*}/probe" in_use "$@"\n', mode=0o755)
    part = page(name="container-runtime-settings", files=(script, *page().files), keep=path)
    dockerd = switched.directory / "bin/dockerd"
    dockerd.parent.mkdir()
    dockerd.touch(0o755)
    switched.path = f"{dockerd.parent}:{switched.path}"
    switched.apply([part])
    changes = switched.run("remove").changes(part.name)
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


def test_modules_that_an_apply_has_compiled_are_used_if_nobody_else_could_have_written_them(switched: SwitchedHost) -> None:
    switched.apply([page()])
    program, stored = (switched.at(f"/var/lib/gpu-fleet/current/lib/{name}") for name in ("converge.pyz", "compiled"))
    intact = stored.read_bytes()
    for damaged in (intact[:-1], b"", intact[:-1] + b"?"):
        stored.write_bytes(damaged)
        assert switched.check().code == 0
    switched.apply([page()])
    assert stored.read_bytes() != damaged, "an apply compiles them again"
    python = shutil.which("python3", path=f"/usr/bin:/usr/libexec:/usr/local/bin:{switched.path}")
    subprocess.run([str(python), "-c", OTHER, stored, program], check=True)
    assert switched.check().code == 77
    stored.chmod(0o666)
    assert switched.check().code == 0, "others may have written it"


def test_the_program_is_one_file_with_the_same_bytes_on_any_machine() -> None:
    first, second = host_program(), host_program()
    assert first == second
    with zipfile.ZipFile(io.BytesIO(first)) as archive:
        infos = archive.infolist()
    assert [info.filename for info in infos] == sorted(info.filename for info in infos)
    assert {(info.date_time, info.create_system, info.compress_type) for info in infos} == {((1980, 1, 1, 0, 0, 0), 3, 0)}
    assert {"__main__.py", "on_host/converge/main.py", "on_host/probe/driver.py", "on_host/tools.py"} <= {
        i.filename for i in infos
    }
    assert not any("__pycache__" in info.filename for info in infos)


def test_what_a_run_reports_as_done_is_on_disk(tmp_path: Path, switched: SwitchedHost) -> None:
    """Files before they are renamed to their names, directories before the result; nothing where nothing changes."""
    theirs = switched.at("/etc/page/index.html")
    theirs.parent.mkdir(parents=True)
    theirs.write_text("the administrator's\n")
    deadly = tmp_path / "deadly"
    switched.kill_at(deadly, 0)
    switched.apply([page()])
    calls = (deadly / "calls").read_text().splitlines()
    renamed = {}
    for number, call in enumerate(calls):
        if call.startswith("rename "):
            source, _, target = call.removeprefix("rename ").partition(" -> ")
            renamed[Path(target).name] = number
            # A link, and what is used only where its own digest fits.
            is_safe = "/undo/" in target or target.endswith(("/current", "/compiled"))
            if target.startswith(f"{switched.prefix}/") and not is_safe:
                assert any(each.startswith(f"sync {source}") for each in calls[:number]), call
    assert {"placed", "settings", "facts", "digest", "index.html", "gpu-fleet.env"} <= renamed.keys()
    saved = switched.at("/var/lib/gpu-fleet/saved/etc/page/index.html")
    assert calls.index(f"sync {saved}") < renamed["index.html"], "an existing file, before ours replaces it"
    assert f"sync {theirs.parent}" in calls[renamed["index.html"] :]
    switched.apply([page()])
    assert "sync" not in (deadly / "calls").read_text(), "an apply that changes nothing waits for no disk"


def test_a_host_without_python_is_refused_with_what_to_install_before_anything_is_placed(switched: SwitchedHost) -> None:
    command = switched.command("apply", [page()])
    start = Path(command[1])
    # As on a host where only the PATH can have one.
    start.write_text(start.read_text().replace("rest=/usr/bin:/usr/libexec:/usr/local/bin:", "rest="))
    sums = start.with_name("SHA256SUMS")
    digest = subprocess.run(["sha256sum", start], capture_output=True, text=True, check=True).stdout.split()[0]
    sums.write_text("".join(f"{digest}  converge\n" if line.endswith("  converge\n") else line for line in sums.open()))
    versions = [f"python3{minor}" for minor in ("", *(f".{number}" for number in range(8, 15)))]
    path = path_without(switched.directory / "bin", *versions, "platform-python")
    run = subprocess.run(command, env={"PATH": path}, capture_output=True, text=True)
    part, result = map(json.loads, run.stdout.splitlines())
    assert (run.returncode, result["ok"], part["error"]["code"]) == (1, False, "unsupported")
    assert "no Python 3.8 or newer" in part["error"]["message"] and "install" in part["error"]["message"]
    assert snapshot(switched.prefix) == {}


def test_a_hostile_environment_changes_nothing(switched: SwitchedHost) -> None:
    trap = switched.directory / "trap"
    trap.mkdir()
    (trap / "json.py").write_text("raise SystemExit(99)\n")
    switched.settings["TRICKY"] = 'a "b" \\ $c `d` é'
    switched.environment = {"PYTHONPATH": str(trap), "PYTHONHOME": str(trap), "LANG": "de_DE.UTF-8", "PYTHONSTARTUP": "/dev/full"}
    switched.apply([page()])
    assert switched.at("/etc/page/index.html").stat().st_mode & 0o777 == 0o644
    switched.environment = {}
    assert switched.apply([page()]).result["changed"] == 0


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
    assert planned_by_dnf(table, "x86_64") == [
        "a-name-that-is-too-long-for-its-column",
        "datacenter-gpu-manager-4-core",
        "glibc32.i686",
    ]
