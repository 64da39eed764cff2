"""Hosts that cannot be reached, logged in on or worked on, and runs that end early: each fails alone, in words, and heals."""

from __future__ import annotations

import os
import re
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import asyncssh
import pytest

from gpu_fleet.host.artifacts import INDEX
from lab.hosts import Host, Site
from lab.hosts.image import SUDO_PASSWORD
from tests.hosts.stack import UP, Backend, Stack, config_of, left_as_found, logins, refusals, sshd_log
from tests.provider.ssh_server import SshServers

PLANTED = {
    "metricsPassword": "planted-metrics-password",
    "logsPassword": "planted-logs-password",
    "sudoPassword": "planted-sudo-password",  # of other hosts
    "sshPrivateKey": "planted-private-key",  # no key at all, so set only where it is to fail
}


@pytest.fixture
def host(site: Site) -> Host:
    return site.hosts["metal-b"]


StackOf = Callable[..., Stack]


@pytest.fixture
def stack_of(site: Site, artifacts: Path, backend: Backend, tmp_path: Path) -> Iterator[StackOf]:
    """Makes a stack of hosts (name -> what its entry has over the usual one); however the test ends, they are bare again."""
    made: list[Stack] = []

    def make(hosts: dict[str, dict], *, secrets: dict[str, str] | None = None, username: str | None = None) -> Stack:
        usual = site.stack_hosts()
        entries = {name: {**usual.get(name, {}), **entry} for name, entry in hosts.items()}
        config = config_of(site, entries, artifacts, backend, username)
        made.append(Stack(tmp_path / "checkout", "faults", config, secrets=secrets or {}).create())
        return made[-1]

    yield make
    for stack in made:
        stack.clear()


@contextmanager
def kept_from_starting(host: Host) -> Iterator[None]:
    """node_exporter, by a drop-in of a package of the site, for a family of services."""
    drop_ins = "/usr/lib/systemd/system/gpu-fleet-node-.service.d"
    conf = '[Service]\nExecStart=\nExecStart=/bin/sh -c "echo not here; exit 1"\n'
    host.ssh(f"mkdir {drop_ins}; cat >{drop_ins}/site.conf", stdin=conf)
    try:
        yield
    finally:
        host.ssh(f"rm -r {drop_ins}; systemctl daemon-reload")


@pytest.fixture
def without_gpu_exporter(artifacts: Path, tmp_path: Path) -> Path:
    """The artifacts, but for one that somebody removed."""
    directory = tmp_path / "artifacts"
    shutil.copytree(artifacts, directory, copy_function=os.link)
    lines = (directory / INDEX).read_text().splitlines()
    (digest,) = (line.split()[0] for line in lines if "  nvidia_gpu_exporter-" in line)
    for file in directory.glob(f"{digest}*"):
        file.unlink()
    return directory


def test_each_dead_host_fails_alone_with_its_cause_and_the_others_finish(
    stack_of: StackOf, site: Site, host: Host, without_gpu_exporter: Path, tmp_path: Path
) -> None:
    servers = SshServers(tmp_path)
    key = {"hostKey": host.host_key}  # never looked at where nothing answers
    causes = {
        "black-hole": ({"address": site.black_hole, **key}, "unreachable: .*no answer within 20 s"),
        "stalling": ({"address": site.stalling, **key}, "unreachable: .*accepted the connection and then sent nothing"),
        "impostor": ({"address": "127.0.0.1", "port": servers.ssh().port, **key}, "host key: .*another host key"),
        "docker": ({"user": "guest"}, "sudo: a password is required; set gpu-fleet:sudoPassword"),
        "amd": ({"gpus": 9}, "GPU count: .*gpus: 9.* 4"),
        "broken": ({"exporter": "textfile"}, "no driver: .*nvidia-smi, rocm-smi or amd-smi"),
        "metal-b": ({}, f"download: the host needs the file with sha256 .* not in {without_gpu_exporter}; `make artifacts`"),
        # On a loaded host the wait for its page times out before it has been started often enough.
        "metal": (
            {"exporter": "textfile"},
            "service did not start: node-exporter: .*does not (keep running|respond .*): not here",
        ),
    }
    stack = stack_of({"container": {"exporter": "textfile"}, **{name: entry for name, (entry, _) in causes.items()}})
    stack.config["artifacts"]["directory"] = str(without_gpu_exporter)
    stack.write()
    with (
        kept_from_starting(site.hosts["metal"]),
        left_as_found(*(site.hosts[name] for name in ("docker", "amd", "broken", "metal-b"))),
    ):
        output = stack.up(ok=False)
    servers.close()
    for name, (_, cause) in causes.items():
        expected = rf"Host \({name}\):\s+error: (?:1 error occurred:\s+\* )?{name}: {cause}"
        assert re.search(expected, output), f"{name}: {cause} is not in\n{output}"
    assert "Traceback" not in output
    assert "Host container created" in output, output
    begun = re.search(r"Host container creating \(\d+s\) [a-z-]+: ", output)
    assert begun and begun.start() < output.index("stalling: unreachable"), f"it waited for the silent one:\n{output}"

    in_place = "cat /etc/gpu-fleet/gpu-fleet.env /var/lib/gpu-fleet/stack /var/lib/gpu-fleet/digest; pgrep -f bin/alloy"
    before = site.hosts["container"].ssh(in_place).stdout
    another = Stack(stack.directory, "another", {**stack.config, "cluster": "inference"})
    another.config["hosts"] = {"container": stack.config["hosts"]["container"]}
    another.pulumi("stack", "init", another.name)
    another.write()
    output = another.up(ok=False)
    assert site.hosts["container"].ssh(in_place).stdout == before
    assert re.search(r"container: belongs to another stack: .*lab-west/training", output), output
    assert "host:Host::" not in another.state.read_text(), "its removal would be that of the first stack's host"


def test_a_refused_key_costs_one_attempt(stack_of: StackOf, host: Host, tmp_path: Path, eventually: Callable[..., None]) -> None:
    key = tmp_path / "other-key"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(key)
    key.chmod(0o600)
    stack = stack_of({"metal-b": {"privateKeyFile": str(key)}})
    before = refusals(host)
    output = stack.up(ok=False)
    assert f"auth: {host.address} refused the login of ops with the key {key}" in output, output
    eventually("the refusal in sshd's log", lambda: refusals(host) > before)
    assert refusals(host) - before == 1, "each attempt may count towards a lock-out"


def test_a_host_key_is_known_by_file_by_entry_or_by_authority(stack_of: StackOf, site: Site, host: Host, tmp_path: Path) -> None:
    by_entry, by_file = site.hosts["docker"], site.hosts["amd"]
    authority = asyncssh.generate_private_key("ssh-ed25519")
    certificate = authority.generate_host_certificate(
        asyncssh.import_public_key(host.host_key), "metal-b", principals=[host.address]
    )
    known_hosts = tmp_path / "known_hosts"
    public = authority.export_public_key().decode().strip()
    known_hosts.write_text(f"@cert-authority {host.address} {public}\n{by_file.address} {by_file.host_key}\n")
    stack = stack_of({"metal-b": {}, "docker": {"hostKey": by_entry.host_key}, "amd": {}})
    stack.config["ssh"]["knownHostsFile"] = str(known_hosts)
    stack.write()
    try:
        host.ssh("cat >/etc/ssh/host-cert.pub", stdin=certificate.export_certificate().decode())
        host.ssh("echo 'HostCertificate /etc/ssh/host-cert.pub' >/etc/ssh/sshd_config.d/ca.conf; systemctl restart ssh")
        output = stack.pulumi("preview", "--diff", PLAN="hosts")
    finally:
        host.ssh("rm -f /etc/ssh/host-cert.pub /etc/ssh/sshd_config.d/ca.conf; systemctl restart ssh")
    for name in ("metal-b", "docker", "amd"):
        assert re.search(rf"{name}: \d+ of \d+ parts would change", output), f"{name} was not let in:\n{output}"


def test_hosts_behind_a_bastion_are_reached_through_one_login_there(stack_of: StackOf, site: Site, host: Host) -> None:
    bastion, other = site.hosts["docker"], site.hosts["amd"]
    stack = stack_of({"metal-b": {}, "amd": {}})
    stack.config["ssh"]["bastion"] = {"host": bastion.address, "user": "guest"}
    stack.write()
    before = logins(bastion, "guest")
    output = stack.pulumi("preview", "--diff", PLAN="hosts")
    for name in ("metal-b", "amd"):
        assert re.search(rf"{name}: \d+ of \d+ parts would change", output), output
    assert logins(bastion, "guest") - before == 1, "hundreds of hosts would meet its MaxStartups"
    for behind in (host, other):
        assert f"Accepted publickey for ops from {bastion.address} " in sshd_log(behind), "it went another way"


@contextmanager
def arguments_of_all_processes() -> Iterator[set[str]]:
    """Fills with the command line of every process that is seen meanwhile: of this machine, which those of its hosts are too."""
    seen: set[str] = set()
    over = threading.Event()

    def watch() -> None:
        looked: Counter[str] = Counter()
        while not over.wait(0.05):
            running = {process.name for process in Path("/proc").iterdir() if process.name.isdecimal()}
            for pid in running:
                if looked[pid] < 3 or looked[pid] % 20 == 0:  # it may have been seen before its exec, and hundreds run for long
                    with suppress(OSError):
                        seen.add(Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
                looked[pid] += 1
            for pid in looked.keys() - running:
                del looked[pid]

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()


def test_a_sudo_password_travels_by_stdin_and_no_secret_is_found_anywhere(stack_of: StackOf, host: Host) -> None:
    stack = stack_of(
        {"metal-b": {"user": "careful"}},
        secrets={
            **{name: secret for name, secret in PLANTED.items() if name != "sshPrivateKey"},
            "sudoPasswords": f"metal-[a:b]: {SUDO_PASSWORD}",
        },
        username="writer",
    )
    with left_as_found(host):
        with arguments_of_all_processes() as arguments:
            shown = "".join(stack.previewed_up("--diff")) + stack.state.read_text()
            shown += stack.pulumi("refresh", "--yes", "--diff")
            stack.config["hosts"]["metal-b"]["gpus"] = 9
            stack.write()
            plan = stack.pulumi("preview", "--diff", PLAN="hosts")
            assert "driver-check: would fail: " in plan, plan
            shown += plan + stack.up(ok=False)
            shown += failed_previews(stack) + stack.state.read_text()
        assert "converge.pyz apply" in "".join(arguments), "the run was watched"
        on_host = host.ssh(
            "journalctl --no-pager --all; cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ | tr '\\0' '\\n';"
            "find /tmp /var/tmp /etc/gpu-fleet/alloy /etc/systemd /opt/gpu-fleet/libexec /var/log/gpu-fleet -type f"
            # Alloy and the timers replace files meanwhile.
            " -exec cat {} +; cat /etc/gpu-fleet/gpu-fleet.env; find /var/lib/gpu-fleet -type f -exec cat {} + || true"
        ).stdout
        for name, secret in {**PLANTED, "sudoPasswords": SUDO_PASSWORD}.items():
            assert secret not in shown, f"{name} in what pulumi shows or keeps"
            # Other tests, which run meanwhile, give the same password to images of the lab and to stacks of theirs.
            by_tests = ("chpasswd", "config set-all")
            seen = [command for command in arguments if secret in command and not any(text in command for text in by_tests)]
            assert not seen, f"{name} in the list of processes, which everybody sees"
            assert secret not in on_host, f"{name} on the host outside its own file"
        commands = [line for line in on_host.splitlines() if "COMMAND=" in line and "gpu-fleet" in line]
        assert commands and max(map(len, commands)) < 500, f"each login fills the host's log with our program: {commands[0]}"
        files = host.ssh("stat --format '%n %a %U:%G' /etc/gpu-fleet/secrets/*").stdout.splitlines()
        assert len(files) == 2
        assert all(re.fullmatch(r"\S+ (0?600|0?640) root:(root|gpu-fleet-[a-z-]+)", line) for line in files), files
        stack.destroy()


def failed_previews(stack: Stack) -> str:
    """What they show: a stack file that is refused, and a provider that can do nothing with a secret."""
    url = stack.config["metrics"].pop("url")
    stack.write()
    refused = stack.pulumi("preview", ok=False)
    assert "gpu-fleet:metrics.url: is missing" in refused, refused
    stack.config["metrics"]["url"] = url
    key_file = stack.config["ssh"].pop("privateKeyFile")
    stack.write()
    stack.pulumi("config", "set", "--secret", "gpu-fleet:sshPrivateKey", stdin=PLANTED["sshPrivateKey"])
    useless = stack.pulumi("preview", "--diff", PLAN="hosts")
    assert "gpu-fleet:sshPrivateKey is not a usable private key" in useless, useless
    stack.pulumi("config", "rm", "gpu-fleet:sshPrivateKey")
    stack.config["ssh"]["privateKeyFile"] = key_file
    stack.write()
    return refused + useless


def test_a_wrong_sudo_password_is_said_and_changes_nothing(stack_of: StackOf, host: Host) -> None:
    stack = stack_of({"metal-b": {"user": "careful"}}, secrets={"sudoPassword": "not-this-one"})
    with left_as_found(host):
        output = stack.up(ok=False)
        assert "sudo: the password of gpu-fleet:sudoPassword was refused" in output, output
        assert "not-this-one" not in output


def test_a_preview_can_ask_the_hosts_and_changes_nothing_there(stack_of: StackOf, host: Host) -> None:
    stack = stack_of({"metal-b": {}})
    with left_as_found(host):
        output = stack.pulumi("preview", "--diff", PLAN="hosts")
    assert "user gpu-fleet-alloy: missing" in output, output


def test_a_host_that_leaves_the_stack_is_cleaned_and_a_lost_one_is_not_contacted(stack_of: StackOf, site: Site) -> None:
    leaving, lost = site.hosts["metal-b"], site.hosts["container"]
    stack = stack_of({"metal-b": {}, "container": {}})
    with left_as_found(leaving, lost):
        stack.up()
        before = logins(lost)
        with_lost = dict(stack.config["hosts"])
        stack.config["hosts"] = {"container": {**with_lost["container"], "lost": True}}
        stack.write()
        stack.up()
        assert leaving.ssh("ls -d /etc/gpu-fleet /opt/gpu-fleet /var/lib/gpu-fleet", check=False).stdout == ""
        assert logins(lost) == before
        stack.config["hosts"] = with_lost  # it was found again
        stack.write()
        stack.up()
        stack.destroy()


def test_a_host_with_another_address_is_the_same_host(stack_of: StackOf, site: Site, host: Host) -> None:
    stack = stack_of({"metal-b": {"hostKey": host.host_key}})
    stack.up()
    running = "systemctl show --property MainPID --value gpu-fleet-alloy gpu-fleet-node-exporter"
    before = host.ssh(running).stdout  # what an apply changes is started again
    address = site.network.host(100)
    host.ssh(f"ip address add {address}/24 dev host0")
    try:
        stack.config["hosts"]["metal-b"]["address"] = address
        stack.write()
        output = stack.up()
        assert re.search(r"Resources:\s+~ 1 updated", output), f"neither replaced nor removed:\n{output}"
        assert host.ssh(running).stdout == before
    finally:
        try:
            stack.destroy()  # while there is the address that the state may have by now
        finally:
            host.ssh(f"ip address delete {address}/24 dev host0")


def test_a_reimaged_host_is_refused_until_its_new_key_is_known_and_then_set_up_again(
    stack_of: StackOf, site: Site, host: Host, tmp_path: Path
) -> None:
    stack = stack_of({"metal-b": {}})
    known_hosts = tmp_path / "known_hosts"
    known_hosts.write_bytes(site.known_hosts_file.read_bytes())
    stack.config["ssh"]["knownHostsFile"] = str(known_hosts)
    stack.write()
    stack.up()
    site.reimage("metal-b")

    output = stack.up("--refresh", ok=False)
    assert f"host key: {host.address} presented another host key than the known one" in output, output

    known_hosts.write_bytes(site.known_hosts_file.read_bytes())
    stack.up("--refresh")
    assert host.ssh("systemctl is-active gpu-fleet-alloy").stdout.strip() == "active"


def test_ctrl_c_ends_the_work_on_the_host_and_the_next_run_finishes_it(
    stack_of: StackOf, host: Host, eventually: Callable
) -> None:
    stack = stack_of({"metal-b": {}})
    with left_as_found(host):
        process = stack.start(*UP)
        placed = host.inside / "var/lib/gpu-fleet/placed"
        eventually("the run is in the midst of it", lambda: placed.exists() and "\tnode-exporter\t" in placed.read_text())
        assert process.poll() is None, process.stdout.read()
        process.send_signal(signal.SIGINT)
        output = process.stdout.read()
        assert process.wait(timeout=300) != 0
        assert "Traceback" not in output, output
        eventually("no converge program on the host", lambda: "converge" not in host.ssh("ps -eo args").stdout)
        stack.unlock()
        stack.up()
        assert host.ssh("systemctl is-active gpu-fleet-alloy").stdout.strip() == "active"
        stack.pulumi("refresh", "--yes", "--skip-preview", "--expect-no-changes")
        stack.destroy()
