"""Hosts that get other names in the stack file: the same machines, with what they have, under new labels."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.dev import query
from lab.hosts import Host, Site
from tests.hosts.stack import Backend, Stack, config_of, left_as_found

INODES = "find /opt/gpu-fleet /etc/gpu-fleet /etc/systemd/system -name '*.env' -prune -o -type f -printf '%p %i %C@\\n' | sort"
SEGMENTS = "find /var/lib/gpu-fleet -path '*wal*' -type f | grep -c ."


@pytest.fixture
def machines(site: Site) -> Iterator[tuple[Host, Host]]:
    machines = site.hosts["metal"], site.hosts["metal-b"]
    with left_as_found(*machines):
        yield machines


@pytest.fixture
def stack(
    machines: tuple[Host, Host], site: Site, artifacts: Path, backend: Backend, tmp_path: Path
) -> Iterator[Callable[[str, str], Stack]]:
    """Names the two machines, anew at each call."""
    made: list[Stack] = []

    def named(*names: str) -> Stack:
        hosts = {name: {"address": host.address, "hostKey": host.host_key} for name, host in zip(names, machines, strict=False)}
        if not made:
            made.append(Stack(tmp_path / "checkout", "rename", config_of(site, hosts, artifacts, backend)).create())
        made[0].config["hosts"] = hosts
        made[0].write()
        return made[0]

    yield named
    for stack in made:
        stack.destroy()


def test_renamed_hosts_keep_what_they_have_and_report_under_their_new_names(
    machines: tuple[Host, Host], stack: Callable[..., Stack], backend: Backend, eventually: Callable[..., None]
) -> None:
    stack("gpu-1", "gpu-2").up()
    before = {host.name: (host.ssh(INODES).stdout, int(host.ssh(SEGMENTS).stdout)) for host in machines}
    assert all("/opt/gpu-fleet/bin/" in files and segments for files, segments in before.values())

    renamed = stack("gpu-001", "gpu-002")
    output = renamed.up()
    assert re.search(r"\+ 2 created\s+- 2 deleted", output), output
    for old, new in {"gpu-1": "gpu-001", "gpu-2": "gpu-002"}.items():
        assert f"{new}: this machine was {old} until now" in output, output
        assert f"{old}: this machine is managed as {new} now; nothing was removed from it" in output, output
    for host, name in zip(machines, ("gpu-001", "gpu-002"), strict=True):
        files, segments = before[host.name]
        assert host.ssh(INODES).stdout == files, "no file but the environment was written again"
        assert int(host.ssh(SEGMENTS).stdout) >= segments, "what Alloy has not sent yet is kept"
        assert host.ssh("systemctl is-active gpu-fleet-alloy gpu-fleet-node-exporter").stdout.split() == ["active"] * 2
        eventually(f"metrics of {name}", lambda name=name: query.metrics(backend.mimir, f'node_uname_info{{instance="{name}"}}'))
    renamed.up("--expect-no-changes")
    renamed.pulumi("refresh", "--yes", "--skip-preview", "--expect-no-changes")
