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
    """Names the two machines, again at each call."""
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


def processes(host: Host) -> dict[str, str]:
    pids = host.ssh("systemctl show --value -p MainPID gpu-fleet-alloy gpu-fleet-node-exporter").stdout.split()
    assert len(pids) == 2 and "0" not in pids, pids
    return dict(zip(("alloy", "node-exporter"), pids, strict=True))


def loaded(host: Host) -> float:
    """When the running Alloy last read its configuration, in seconds of Unix time."""
    metric = "alloy_config_last_load_success_timestamp_seconds"
    return float(host.ssh(f"curl -s http://127.0.0.1:12345/metrics | sed -n 's/^{metric}.* //p'").stdout)


def name_on(host: Host) -> str:
    return host.ssh("sed -n 's/^GPU_FLEET_INSTANCE=//p' /var/lib/gpu-fleet/settings").stdout.strip()


def test_renamed_hosts_keep_what_they_have_and_report_under_their_new_names(
    machines: tuple[Host, Host], stack: Callable[..., Stack], backend: Backend, eventually: Callable[..., None]
) -> None:
    stack("gpu-1", "gpu-2").up()
    before = {host.name: (host.ssh(INODES).stdout, int(host.ssh(SEGMENTS).stdout), processes(host)) for host in machines}
    assert all("/opt/gpu-fleet/bin/" in files and segments for files, segments, _ in before.values())

    renamed = stack("gpu-001", "gpu-002")
    preview, output = renamed.previewed_up()
    for text in (preview, output):
        assert re.search(r"~ 2 (to update|updated)", text) and not re.search(r"creat|delet", text), text
        for old, new in {"gpu-1": "gpu-001", "gpu-2": "gpu-002"}.items():
            assert f"{old} → {new} (same machine)" in text, text
    for host, name in zip(machines, ("gpu-001", "gpu-002"), strict=True):
        files, segments, pids = before[host.name]
        assert host.ssh(INODES).stdout == files, "no file but the environment was written again"
        assert int(host.ssh(SEGMENTS).stdout) >= segments, "what Alloy has not sent yet is kept"
        now = processes(host)
        assert now["node-exporter"] == pids["node-exporter"] and now["alloy"] != pids["alloy"], "only Alloy knows the name"
        eventually(f"metrics of {name}", lambda name=name: query.metrics(backend.mimir, f'node_uname_info{{instance="{name}"}}'))
    renamed.up_unchanged()

    metal, _ = machines
    pids, loaded_at = processes(metal), loaded(metal)
    metal.ssh("echo '// by hand' >>/etc/gpu-fleet/alloy/discover.alloy")
    renamed.up("--refresh")
    assert metal.ssh("cat /etc/gpu-fleet/alloy/discover.alloy").stdout.count("by hand") == 0
    eventually("Alloy reads the changed configuration", lambda: loaded(metal) > loaded_at)
    assert processes(metal) == pids, "without a restart"


def test_a_host_is_who_the_stack_file_says_wherever_it_is(machines: tuple[Host, Host], stack: Callable[..., Stack]) -> None:
    """Swapped addresses, another cluster, another machine under an old name, one that was reinstalled."""
    metal, metal_b = machines
    stack("gpu-1", "gpu-2").up()
    exporters = [processes(host)["node-exporter"] for host in machines]
    swapped = stack("gpu-2", "gpu-1")
    swapped.config["cluster"] = "inference"
    swapped.write()
    preview, output = swapped.previewed_up()
    assert f"gpu-1: address {metal.address} → {metal_b.address}\n" in preview, preview
    assert "~ 3 updated" in output and "another one than before" not in output, output  # the bundle too
    assert "gpu-2 → gpu-1 (same machine)" in output and "gpu-1 → gpu-2 (same machine)" in output, output
    assert [name_on(host) for host in machines] == ["gpu-2", "gpu-1"]
    assert [processes(host)["node-exporter"] for host in machines] == exporters
    assert metal.ssh("cat /var/lib/gpu-fleet/stack").stdout.strip() == "lab-west/inference"
    swapped.up("--expect-no-changes")

    alone = stack("gpu-2")
    alone.up()
    alone.config["hosts"] = {"gpu-2": {"address": metal_b.address, "hostKey": metal_b.host_key}}
    alone.write()
    preview, output = alone.previewed_up()
    expected = f"gpu-2: address {metal.address} → {metal_b.address}; the machine at {metal.address} is not changed"
    assert expected in preview, preview
    [command] = set(re.findall(r"To clean it, run there: sudo (sh /var/lib/gpu-fleet/current/converge remove .*)", output))
    assert [name_on(host) for host in machines] == ["gpu-2", "gpu-2"], "who is at the old address now is not known from here"
    metal.ssh(command)
    assert metal.ssh("ls -d /etc/gpu-fleet /opt/gpu-fleet /var/lib/gpu-fleet 2>/dev/null", check=False).stdout == ""

    metal_b.ssh("sh /var/lib/gpu-fleet/current/converge remove --prefix ''")
    output = alone.pulumi("refresh", "--yes", "--skip-preview")
    assert "gpu-2: nothing of gpu-fleet is on this host any more; the next `up` places it again" in output, output
    assert "+ 1 created" in alone.up()
    assert name_on(metal_b) == "gpu-2"
