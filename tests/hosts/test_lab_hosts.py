"""The throw-away hosts themselves: what they are like inside, and that nothing of them outlives its use."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lab import hosts as lab_hosts
from lab.hosts import VARIANTS, HostsError, Site, image, needs, network
from lab.hosts.cgroup import Group
from tests.checkout import REPO
from tests.hosts.stack import logins
from toolchain.progress import Progress


@pytest.mark.parametrize("name", ["metal", "docker", "amd", "broken"])
def test_a_machine_has_booted_without_a_failed_unit_and_takes_itself_for_bare_metal(site: Site, name: str) -> None:
    host = site.hosts[name]
    assert host.ssh("systemctl is-system-running").stdout.strip() == "running"
    assert host.ssh("systemd-detect-virt --container", check=False).stdout.strip() == "none"


def test_docker_runs_where_it_should_and_only_there(site: Site) -> None:
    assert "overlay2" in site.hosts["docker"].ssh("docker info").stdout
    assert site.hosts["metal"].ssh("command -v docker", check=False).returncode != 0


def test_the_gpus_of_each_host_are_its_own(site: Site) -> None:
    lists = {name: site.hosts[name].ssh("nvidia-smi -L").stdout for name in ("metal", "metal-b", "container")}
    assert [text.count("\n") for text in lists.values()] == [8, 8, 2]
    assert len(set(lists.values())) == 3
    assert site.hosts["amd"].ssh("/opt/rocm/bin/rocm-smi --showid").returncode == 0
    assert site.hosts["broken"].ssh("command -v nvidia-smi rocm-smi", check=False).stdout == ""


@pytest.mark.parametrize("name", ["metal", "container"])
def test_root_s_commands_share_a_login_and_do_without_it_once_it_is_cut(site: Site, name: str) -> None:
    host = site.hosts[name]
    before = logins(host, "root")
    assert [host.ssh(f"echo {number}; exit {number}", check=False).returncode for number in range(3)] == [0, 1, 2]
    assert logins(host, "root") == before
    before_of_ops = logins(host, "ops")
    host.ssh("true", user="ops")
    assert logins(host, "ops") == before_of_ops + 1, "the tests of the provider count these"
    host.ssh("pkill -KILL -f '^sshd.*: root'", check=False)
    assert host.ssh("echo again").stdout == "again\n"
    assert logins(host, "root") > before


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


def test_a_running_owners_site_is_left_alone(site: Site) -> None:
    lab_hosts.reap()
    assert site.hosts["metal"].group.is_alive()


def test_without_root_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(HostsError, match="run it again with sudo"):
        needs.require(Progress())


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        (
            "sources.list",
            "deb [arch=amd64 signed-by=/k.gpg] http://mirror.test/debian bookworm main\n",
            ["http://mirror.test/debian"],
        ),
        ("sources.list.d/debian.sources", "Types: deb\nURIs: https://mirror.test/debian/\n", ["https://mirror.test/debian/"]),
        ("sources.list", "# deb http://mirror.test/debian bookworm main\ndeb http://mirror.test/ubuntu noble main\n", []),
        ("sources.list.d/tool.list", "deb http://mirror.test/debian-security bookworm main\n", []),
    ],
    ids=["one line", "deb822", "no Debian", "not the archive itself"],
)
def test_the_mirror_is_the_one_this_machine_uses(tmp_path: Path, file: str, text: str, expected: list[str]) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    assert image.mirror(tmp_path) == expected


def test_a_changed_recipe_is_another_root() -> None:
    changed = image.Layer(name="base", packages=(*image.BASE.packages, "jq"), setup=image.BASE.setup)
    above = image.Layer(name="machine", below=changed, packages=image.MACHINE.packages, setup=image.MACHINE.setup)
    assert changed.digest != image.BASE.digest
    assert above.digest != image.MACHINE.digest


def test_two_sites_at_once_have_networks_of_their_own_and_down_may_be_said_twice(site: Site) -> None:
    with Site.up({"short": lab_hosts.VARIANTS["metal"]}) as short:
        assert short.network.number != site.network.number
        assert short.hosts["short"].ssh("hostname").stdout == "short\n"
    short.down()
    assert site.hosts["metal"].ssh("hostname").stdout == "metal\n"


def test_a_new_site_ends_what_is_left_of_an_earlier_one_with_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose directory somebody deleted: nothing else would find its processes again, and its hosts would count as booted."""
    # The tests beside this one make sites too, and take the lowest number that is free.
    free = network.free({*range(200), *(int(site.directory.name) for site in lab_hosts.all_sites())})
    monkeypatch.setattr(network, "free", lambda _: free)
    left = Group(f"{free.number}/left")
    left.create()
    process = subprocess.Popen(["sleep", "300"], preexec_fn=left.entering())
    with Site.up({"left": VARIANTS["metal"]}, boots_on_use=True) as site:
        assert f"{site.directory.name}/left" == left.name
        assert process.wait(120) == -signal.SIGKILL
        assert not left.is_alive()
