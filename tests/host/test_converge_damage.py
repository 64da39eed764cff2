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
    copy = snapshot(bundle_of(host), without="lib/compiled")
    placed = host.snapshot()
    files = sorted(path for path in bundle_of(host).rglob("*") if path.is_file() and path.name != "compiled")
    assert len(files) > 5
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
    assert (host.snapshot(), snapshot(bundle_of(host), without="lib/compiled")) == (placed, copy)
    assert host.check().code == 0
    assert host.remove().code == 0
    assert snapshot(host.prefix) == {}


def test_a_damaged_copy_is_named_with_what_repairs_it(host: SimulatedHost) -> None:
    host.apply([page()])
    (bundle_of(host) / "lib/converge.pyz").write_bytes(b"")
    run = host.remove()
    assert (run.code, run.stdout) == (11, "")
    assert "lib/converge.pyz differs" in run.stderr and "the next `up`" in run.stderr


@pytest.mark.parametrize("why", ["Permission denied", "Operation not permitted", "Input/output error"])
def test_a_copy_that_may_not_be_read_is_not_called_damaged(host: SimulatedHost, why: str) -> None:
    """A policy that denies it to root (fapolicyd, SELinux), or a broken disk."""
    host.apply([page()])
    tool = host.directory / "tools/sha256sum"
    tool.parent.mkdir()
    tool.write_text(
        f"#!/bin/sh\necho 'sha256sum: lib/converge.pyz: {why}' >&2\necho 'lib/converge.pyz: FAILED open or read'\nexit 1\n"
    )
    tool.chmod(0o755)
    host.path = f"{tool.parent}:{host.path}"
    run = host.remove()
    assert (run.code, run.stdout) == (1, "")
    assert f"cannot be read (sha256sum: lib/converge.pyz: {why}); nothing was done" in run.stderr and "damaged" not in run.stderr


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
