"""Upgrades, removed features and killed runs on a real host: unaffected services keep running, nothing is left behind."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_fleet.host.part import Part, Source
from lab.hosts import Host, Site
from tests.hosts.placed import ARTIFACTS, ENVELOPE, PlacedHost
from tests.hosts.stack import left_as_found

SERVICES = ("alloy", "node-exporter", "nvidia-gpu-exporter")


@pytest.fixture(scope="module")
def placed(site: Site, artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlacedHost]:
    """`artifacts` of its own: the tests add versions."""
    own = tmp_path_factory.mktemp("own") / "artifacts"
    shutil.copytree(artifacts, own, copy_function=lambda source, to: Path(to).hardlink_to(source))
    placed = PlacedHost(site.hosts["metal-b"], own)
    with left_as_found(placed.host):
        try:
            yield placed
        finally:
            placed.leave()


def processes(host: Host) -> dict[str, str]:
    shown = host.ssh("systemctl show --property MainPID --value " + " ".join(f"gpu-fleet-{name}" for name in SERVICES)).stdout
    return dict(zip(SERVICES, shown.split(), strict=True))


def with_program(parts: list[Part], placed: PlacedHost, part: str, content: bytes) -> list[Part]:
    """The parts with another version of a part's program, brought to the host's artifacts."""
    digest = hashlib.sha256(content).hexdigest()
    (placed.host.inside / ARTIFACTS.lstrip("/") / digest).write_bytes(content)

    def upgraded(one: Part) -> Part:
        downloads = tuple(
            replace(each, sources={arch: Source(sha256=digest) for arch in ("amd64", "arm64")}) for each in one.downloads
        )
        return replace(one, downloads=downloads) if one.name == part else one

    return [upgraded(one) for one in parts]


def test_an_upgrade_restarts_its_service_alone_and_a_bad_one_is_put_back(placed: PlacedHost) -> None:
    host, parts = placed.host, placed.parts()
    online = "systemctl is-active network-online.target"
    host.ssh("systemctl stop network-online.target")
    assert placed.apply(parts).errors == {}
    assert host.ssh(online, check=False).stdout == "inactive\n", "it waits for links that have no cable, and fails"
    before, files = processes(host), host.ssh("find /opt/gpu-fleet | sort").stdout
    program = host.inside / "opt/gpu-fleet/bin/node_exporter"
    good = program.read_bytes() + b"\0"  # differs as another release would

    upgrade = placed.apply(with_program(parts, placed, "node-exporter", good))
    assert (upgrade.errors, set(upgrade.changes)) == ({}, {"node-exporter"})
    after = processes(host)
    assert {name for name in SERVICES if after[name] != before[name]} == {"node-exporter"}
    assert program.read_bytes() == good
    assert host.ssh("find /opt/gpu-fleet | sort; ls /var/lib/gpu-fleet/undo").stdout == files, "the old program is gone"

    bad = placed.apply(with_program(parts, placed, "node-exporter", b"#!/bin/sh\nexit 1\n"))
    assert set(bad.errors) == {"node-exporter"}
    assert "the previous version runs again" in bad.errors["node-exporter"]
    assert program.read_bytes() == good
    assert "node_uname_info" in host.ssh("curl --silent http://127.0.0.1:9100/metrics").stdout
    assert processes(host)["alloy"] == before["alloy"]


def test_a_feature_that_is_turned_off_goes_with_its_files_units_and_accounts(placed: PlacedHost) -> None:
    host = placed.host
    processes_left = "pgrep --list-full --full '[/]opt/gpu-fleet/bin/nvidia'"
    assert placed.apply().errors == {}
    assert host.ssh(processes_left).stdout != ""
    placed.settings["GPU_FLEET_EXPORTER"] = "textfile"
    # As a kill leaves it in the middle of an earlier removal: the account is gone, its group is there, and its name in others.
    assert "video:" in host.ssh("grep '[:,]gpu-fleet-nvidia-gpu-exporter' /etc/group").stdout
    host.ssh("sed -i '/^gpu-fleet-nvidia-gpu-exporter:/d' /etc/passwd /etc/shadow")
    try:
        assert placed.apply().errors == {}
    finally:
        del placed.settings["GPU_FLEET_EXPORTER"]
    left = host.ssh(
        "find /etc /opt/gpu-fleet -path '*nvidia*gpu*exporter*'; getent passwd gpu-fleet-nvidia-gpu-exporter;"
        "grep gpu-fleet-nvidia-gpu-exporter /etc/group /etc/gshadow;"
        f"{processes_left}; systemctl list-unit-files --no-legend 'gpu-fleet-nvidia*';"
        "ls /etc/gpu-fleet/alloy | grep gpu_exporter",
        check=False,
    ).stdout
    assert left == ""
    assert placed.check().drift == []


def timed(host: Host, command: str) -> float:
    start = time.monotonic()
    host.ssh(command, timeout_s=600)
    return time.monotonic() - start


def test_a_run_killed_at_any_moment_is_finished_by_the_next(placed: PlacedHost) -> None:
    host = placed.host
    placed.apply()
    started = (
        f"setsid sh {ENVELOPE}/bundle/converge {{}} --prefix '' --envelope {ENVELOPE} --artifacts {ARTIFACTS} >/dev/null 2>&1"
    )
    takes_s = {verb: timed(host, started.format(verb)) for verb in ("remove", "apply")}

    def is_killed(verb: str, after_s: float) -> bool:
        begun = "until kill -0 -$! 2>/dev/null; do kill -0 $! || exit; done"  # it has its own session by then
        kill = f"{started.format(verb)} & {begun}; sleep {after_s:.2f}; kill -9 -$! 2>/dev/null && echo killed"
        return host.ssh(kill, check=False, timeout_s=600).stdout == "killed\n"

    for share in (0.05, 0.2, 0.4, 0.6, 0.8):
        for verb, other in (("remove", "apply"), ("apply", "remove")):
            while not is_killed(verb, share * takes_s[verb]):  # over by then: the machine is less busy than before
                takes_s[verb] *= share
                takes_s[other] = timed(host, started.format(other))
    # What they waited for was not killed with them.
    host.ssh("while pgrep -f bundle/lib/[c]onverge >/dev/null; do sleep 0.1; done")
    assert placed.apply().errors == {}
    assert placed.check().drift == []
    # A check has such files while it works.
    over = "while systemctl is-active gpu-fleet-check | grep -q activating; do sleep 0.1; done"
    host.ssh(f"systemctl stop gpu-fleet-check.timer; {over}")
    assert (
        host.ssh("ls -d /var/lib/gpu-fleet/*.new /var/lib/gpu-fleet/scratch.* /opt/gpu-fleet/*/.*new", check=False).stdout == ""
    )
