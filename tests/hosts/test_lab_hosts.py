"""The throw-away hosts themselves: what they are like inside, and that nothing of them outlives its use."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_fleet.toolchain.progress import Progress
from lab import hosts as lab_hosts
from lab.hosts import HostsError, Site, needs
from lab.hosts.cgroup import Group
from tests.checkout import REPO


@pytest.mark.parametrize("name", ["metal", "docker", "amd", "broken"])
def test_a_machine_has_booted_without_a_failed_unit_and_takes_itself_for_bare_metal(site: Site, name: str) -> None:
    host = site.hosts[name]
    assert host.ssh("systemctl is-system-running").stdout.strip() == "running"
    assert host.ssh("systemd-detect-virt --container", check=False).stdout.strip() == "none"


def test_a_kernel_line_is_in_the_journal_of_this_boot(site: Site) -> None:
    site.hosts["broken"].kernel_line("NVRM: this is a test", "NVRM: and another")
    lines = site.hosts["broken"].ssh("journalctl --dmesg --no-pager --output cat").stdout.splitlines()
    assert lines == ["NVRM: this is a test", "NVRM: and another"]


def test_the_black_hole_answers_nothing_and_the_staller_says_nothing(site: Site) -> None:
    with pytest.raises(TimeoutError):
        socket.create_connection((site.black_hole, 22), timeout=1.5)
    with socket.create_connection((site.stalling, 22), timeout=60) as connection:
        connection.settimeout(1)
        with pytest.raises(TimeoutError):
            connection.recv(1)


def test_hosts_reach_each_other_and_nothing_else(site: Site) -> None:
    greet = f"timeout 60 bash -c 'read -r line </dev/tcp/{site.hosts['metal-b'].address}/22; echo $line'"
    assert site.hosts["container"].ssh(greet).stdout.startswith("SSH-")
    assert site.hosts["container"].ssh("ip route get 192.0.2.77", check=False).returncode != 0


def test_a_site_whose_owner_was_killed_is_taken_down_by_the_next_one() -> None:
    program = (
        "import time\n"
        "from lab.hosts import Site, VARIANTS\n"
        "site = Site.up({'orphan': VARIANTS['container']})\n"
        "print(site.directory, site.network.bridge, flush=True)\n"
        "time.sleep(600)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", program], cwd=REPO, stdout=subprocess.PIPE, text=True, start_new_session=True)
    directory, bridge = owner.stdout.readline().split()
    group = Group(Path(directory).name)
    assert group.is_alive()
    os.kill(owner.pid, signal.SIGKILL)
    owner.wait()

    lab_hosts.reap()
    assert not group.is_alive()
    assert not Path(directory).exists()
    assert not Path(f"/sys/class/net/{bridge}").exists()
    assert directory not in Path("/proc/self/mountinfo").read_text()


def test_without_root_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(HostsError, match="run it again with sudo"):
        needs.require(Progress())
