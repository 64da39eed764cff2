"""What a power cut or a hand leaves of the program's own copy and its records: nothing that claims a success, and the next apply
repairs it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.host.hosts import Run, SimulatedHost, page, snapshot


def says_success(run: Run) -> bool:
    """As whoever reads the program's lines understands it."""
    return ('"event":"result"' in run.stdout and run.result["ok"]) or '"event":"absent"' in run.stdout


def bundle_of(host: SimulatedHost) -> Path:
    return host.at("/var/lib/gpu-fleet/current").resolve()


def test_a_copy_with_any_file_emptied_neither_checks_nor_removes_and_is_made_again(host: SimulatedHost) -> None:
    host.apply([page()])
    copy = snapshot(bundle_of(host))
    placed = host.snapshot()
    files = sorted(path for path in bundle_of(host).rglob("*") if path.is_file() and path.name != "supervisord.conf")
    assert len(files) > 25
    for file in files:
        content = file.read_bytes()
        file.write_bytes(b"")
        for verb in ("check", "remove"):
            run = host.run(verb)
            assert not says_success(run), f"{verb} with an empty {file.name}: {run.stdout}"
        assert host.snapshot() == placed, f"nothing is removed by half with an empty {file.name}"
        file.write_bytes(content)
    for file in files:
        file.write_bytes(b"")
    host.apply([page()])
    assert (host.snapshot(), snapshot(bundle_of(host))) == (placed, copy)
    assert host.check().code == 0
    assert host.remove().code == 0
    assert snapshot(host.prefix) == {}


def test_a_damaged_copy_is_named_with_what_repairs_it(host: SimulatedHost) -> None:
    host.apply([page()])
    (bundle_of(host) / "lib/packages.sh").write_bytes(b"")
    run = host.remove()
    assert (run.code, run.stdout) == (11, "")
    assert "lib/packages.sh differs" in run.stderr and "the next `up`" in run.stderr


@pytest.mark.parametrize("line", ["format\t2", "part\thost", ""])
def test_a_bundle_made_from_two_versions_is_refused_with_what_to_do(host: SimulatedHost, line: str) -> None:
    host.apply([page()])
    bundle = bundle_of(host)
    manifest = bundle / "manifest"
    manifest.write_text(manifest.read_text().replace("format\t1", line, 1))
    _sum_again(bundle)
    placed = host.snapshot()
    for verb in ("check", "remove"):
        run = host.run(verb)
        error = run.error("host")
        assert error["code"] == "damaged" and "is of another version than the program beside it" in error["message"], verb
        assert "Make the bundle again" in error["message"]
        assert host.snapshot() == placed


def test_a_disk_that_fills_while_the_manifest_is_read_is_not_called_a_wrong_manifest(host: SimulatedHost) -> None:
    host.apply([page()])
    bundle = bundle_of(host)
    library = bundle / "lib/manifest.sh"  # where awk writes its parts to a device that is always full
    library.write_text(library.read_text().replace('print part >(ENVIRON["OUT"] "/parts")', 'print part >"/dev/full"'))
    assert "/dev/full" in library.read_text()
    _sum_again(bundle)
    error = host.check().error("host")
    assert error["code"] == "disk-full" and "free some space" in error["message"], error


def _sum_again(bundle: Path) -> None:
    names = [line.split("  ", 1)[1] for line in (bundle / "SHA256SUMS").read_text().splitlines()]
    sums = [f"{hashlib.sha256((bundle / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (bundle / "SHA256SUMS").write_text("".join(sums))


@pytest.mark.parametrize("lost", ["emptied", "deleted"])
def test_a_host_whose_records_are_lost_is_not_called_removed(host: SimulatedHost, lost: str) -> None:
    host.apply([page()])
    records = host.at("/var/lib/gpu-fleet/placed")
    if lost == "emptied":
        records.write_bytes(b"")
    else:
        records.unlink()
    placed = host.snapshot()
    run = host.remove()
    assert (run.code, run.error("host")["code"]) == (1, "damaged")
    assert str(records) in run.error("host")["message"]
    assert host.snapshot() == placed
    assert host.check().code == 4, "that is drift"
    host.apply([page()])
    assert host.check().code == 0
    assert host.remove().code == 0
    assert "etc/gpu-fleet" not in snapshot(host.prefix)


def test_records_without_a_program_are_not_called_absent(host: SimulatedHost) -> None:
    host.apply([page()])
    host.at("/var/lib/gpu-fleet/current").unlink()
    run = host.run("remove", [page()])  # a program from elsewhere, which works by the records
    assert run.statuses == {"page": "removed", "host": "removed"}
    assert snapshot(host.prefix) == {}


# --- on disk before it is relied on -------------------------------------------------------------------------------------------


@pytest.fixture
def watched(host: SimulatedHost) -> Path:
    """What sync and mv were called with, one call a line."""
    programs, log = host.directory / "programs", host.directory / "calls"
    programs.mkdir()
    for name in ("sync", "mv"):
        (programs / name).write_text(f'#!/bin/sh\necho {name} "$*" >>\'{log}\'\nexec /bin/{name} "$@"\n')
        (programs / name).chmod(0o755)
    host.path = f"{programs}:{host.path}"
    log.touch()
    return log


def test_each_record_is_on_disk_before_it_has_its_name(host: SimulatedHost, watched: Path) -> None:
    host.apply([page()])
    host.apply([page("new\n")])
    state = str(host.at("/var/lib/gpu-fleet"))
    synced: set[str] = set()
    renamed: list[str] = []
    for call in watched.read_text().splitlines():
        if call.startswith("sync "):
            synced.update(f"{state}{path}".rstrip() for path in call.split(state)[1:])
        elif f" {state}/" in call:
            *new, to = call.split(f" {state}/")[1:]
            if to.startswith("bundles/"):
                renamed.append("bundle")
                [bundle] = new
                assert {f"{state}/{bundle}/converge", f"{state}/{bundle}/lib/verbs.sh", f"{state}/{bundle}/manifest"} <= synced
                continue
            for path in new:  # into the state directory itself, or to a name in it
                name = to or path.rpartition("/")[2]
                if name in ("placed", "settings", "facts", "digest"):
                    renamed.append(name)
                    assert f"{state}/{path}" in synced, f"a power cut may leave an empty {name}: {call}"
                    synced.discard(f"{state}/{path}")
    assert {"placed", "settings", "digest", "bundle"} <= set(renamed)


def test_what_a_run_reports_as_done_is_on_disk(host: SimulatedHost, watched: Path) -> None:
    """Files before they are renamed to their names, the directories that list them before the result."""
    host.at("/etc/page").mkdir(parents=True)
    host.at("/etc/page/index.html").write_text("the administrator's\n")
    host.apply([page()])
    calls = watched.read_text()
    new = host.at("/etc/page/.index.html.gpu-fleet-new")
    assert calls.index(f"sync {new}\n") < calls.index(f"mv -fT {new} {host.at('/etc/page/index.html')}\n")
    saved = host.at("/var/lib/gpu-fleet/saved/etc/page/index.html")
    assert calls.index(f"sync {saved}\n") < calls.index(f"sync {new}\n"), "an existing file, before ours replaces it"
    assert f"{host.at('/etc/page')} " in calls.splitlines()[-1] + " "

    watched.write_text("")
    assert host.remove().code == 0
    removed = watched.read_text()
    flushed = any(call.startswith("sync ") and f" {host.at('/etc/page')} " in f"{call} " for call in removed.splitlines())
    assert flushed, "their file is back on disk before the run ends"


def test_an_apply_that_changes_nothing_waits_for_no_disk(host: SimulatedHost, watched: Path) -> None:
    host.apply([page()])
    watched.write_text("")
    host.apply([page()])
    assert "sync" not in watched.read_text()


def test_a_sync_that_takes_no_files_is_asked_for_everything(host: SimulatedHost, watched: Path) -> None:
    old = host.directory / "programs/sync"
    old.write_text(
        f"#!/bin/sh\n[ $# -eq 0 ] || {{ echo \"sync: ignoring all arguments\" >&2; exit 1; }}\necho plain >>'{watched}'\n"
    )
    host.apply([page()])
    assert "plain" in watched.read_text()
