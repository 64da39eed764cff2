"""Hosts over SSH: the real client in the plugin, a real server on loopback whose commands run here below a prefix."""

from __future__ import annotations

import asyncio
import copy
import getpass
import re
import shlex
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import asyncssh
import pytest
from pulumi.runtime.proto import engine_pb2

from gpu_fleet.provider.host import READY_TIMEOUT_S, HostError, Hosts, Place, SudoPasswords
from gpu_fleet.provider.settings import Settings
from gpu_fleet.provider.ssh import Limits, SshTransport
from gpu_fleet.provider.transport import LocalTransport, TransportError
from gpu_fleet.provider.values import decode
from tests.provider.plugin import HOST, PASSWORD, Failure, LocalHost, Plugin
from tests.provider.ssh_server import SshServer, SshServers
from tests.provider.test_host import child_of, is_gone_soon

Configure = Callable[..., LocalHost]


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[SshServers]:
    servers = SshServers(tmp_path)
    yield servers
    servers.close()


@pytest.fixture
def server(servers: SshServers) -> SshServer:
    return servers.ssh()


class SshHost(LocalHost):
    """What is placed on the host is below `prefix` here."""

    port = 22

    def inputs(self, do: str = "", **changed: Any) -> dict[str, Any]:
        connection = {"kind": "ssh", "address": "127.0.0.1", "port": self.port, "prefix": str(self.prefix)}
        return super().inputs(do, **{"connection": connection | changed.pop("connection", {}), **changed})


@pytest.fixture
def configure(plugin: Plugin, servers: SshServers, server: SshServer, tmp_path: Path) -> Configure:
    """Configures the plugin's login, and gives a host behind `server`. Arguments replace values of `ssh`, None removes one."""

    def configure(plugin: Plugin = plugin, config: dict[str, Any] | None = None, **changed: Any) -> SshHost:
        ssh = {"user": "ops", "privateKeyFile": servers.key_file(), "knownHostsFile": servers.known_hosts(server), "sudo": False}
        ssh = {key: value for key, value in {**ssh, **changed}.items() if value is not None}
        plugin.configure(**{"secrets": {"metrics-password": PASSWORD}, "ssh": ssh, **(config or {})})
        host = SshHost(tmp_path / "host", plugin.bundle())
        host.port = server.port
        return host

    return configure


def create(plugin: Plugin, host: LocalHost, do: str = "", **changed: Any) -> dict[str, Any]:
    return plugin.create(HOST, plugin.checked(HOST, host.inputs(do, **changed)))[1]


def test_a_host_gets_settings_and_secrets_by_one_login(plugin: Plugin, configure: Configure, server: SshServer) -> None:
    host = configure()
    assert create(plugin, host)["facts"] == {"GPU_COUNT": "8"}
    assert host.placed("etc/gpu-fleet/secrets/metrics-password") == PASSWORD
    assert len(server.logins) == 1
    assert server.users == ["ops"]


def test_a_host_overrides_the_login_of_the_stack(plugin: Plugin, configure: Configure, server: SshServer) -> None:
    create(plugin, configure(port=1), connection={"user": "admin"})
    assert server.users == ["admin"]


def test_the_key_may_be_the_secret_itself_which_comes_before_files(
    plugin: Plugin, configure: Configure, servers: SshServers
) -> None:
    key = servers.client_key.export_private_key().decode()
    create(plugin, configure(privateKeyFile="/home/somebody/.ssh/id", config={"sshPrivateKey": key}))


def test_only_artifacts_that_the_host_lacks_travel_in_the_same_login(
    plugin: Plugin, configure: Configure, server: SshServer, tmp_path: Path
) -> None:
    here, missing = tmp_path / "artifacts", "b" * 64
    here.mkdir()
    for digest in ("a" * 64, missing):
        (here / digest).write_bytes(digest[:1].encode() * 3_000_000)
    host = configure(config={"artifactDirectory": str(here)})
    create(plugin, host, settings={"DO": "", "NEEDS": missing})
    assert host.placed(f"etc/gpu-fleet/{missing}") == "b" * 3_000_000
    assert not (host.prefix / "etc/gpu-fleet" / ("a" * 64)).exists()
    assert (here / f"{missing}.gz").stat().st_size < 30_000, "compressed once, for all hosts and for the next run"
    assert len(server.logins) == 1


def test_a_host_that_asks_again_for_what_it_was_sent_is_no_success(plugin: Plugin, configure: Configure, tmp_path: Path) -> None:
    (tmp_path / ("b" * 64)).touch()
    with pytest.raises(Failure, match=r"^node-1: internal error: the host asked for files again"):
        create(plugin, configure(config={"artifactDirectory": str(tmp_path)}), settings={"DO": "insists", "NEEDS": "b" * 64})


def test_a_host_that_asks_for_files_where_there_is_no_directory_of_them_is_no_success(
    plugin: Plugin, configure: Configure
) -> None:
    with pytest.raises(Failure, match=r"^node-1: download: the host needs the file with sha256 bbb.*no directory"):
        create(plugin, configure(), settings={"DO": "", "NEEDS": "b" * 64})


def test_an_artifact_that_is_nowhere_is_reported(plugin: Plugin, configure: Configure, tmp_path: Path) -> None:
    host = configure(config={"artifactDirectory": str(tmp_path)})
    with pytest.raises(Failure, match=r"^node-1: download: the host needs the file with sha256 bbb.*make artifacts"):
        create(plugin, host, settings={"DO": "", "NEEDS": "b" * 64})


# --- host keys --------------------------------------------------------------------------------------------------------------


def test_another_host_key_ends_the_only_attempt(
    plugin: Plugin, configure: Configure, servers: SshServers, server: SshServer
) -> None:
    host = configure(knownHostsFile=servers.known_hosts(servers.ssh()))
    with pytest.raises(Failure) as failure:
        create(plugin, host, connection={"hostKey": servers.ssh().public_key})
    assert failure.value.message.startswith(
        f"node-1: host key: 127.0.0.1:{server.port} presented another host key than the known one"
    )
    assert asyncssh.import_public_key(server.public_key).get_fingerprint() in failure.value.message
    assert len(server.logins) == 1
    assert not server.users, "nothing may be sent to a host with another key"
    assert failure.value.kept is None


@pytest.mark.parametrize("unknown", ["", "bastion "])
def test_an_unknown_host_or_bastion_is_refused_with_the_way_to_know_it(
    plugin: Plugin, configure: Configure, servers: SshServers, server: SshServer, unknown: str
) -> None:
    jump = servers.ssh(jump=True)
    place = {"bastion": {"host": "127.0.0.1", "port": jump.port}} if unknown else {}
    host = configure(knownHostsFile=servers.known_hosts(*([server] if unknown else [jump])), **place)
    where = f"{unknown}127.0.0.1:{(jump if unknown else server).port}"
    with pytest.raises(Failure, match=rf"host key: {where} is not in the known hosts file; `make known-hosts`"):
        create(plugin, host)
    assert not server.users and not jump.users, "nothing was sent to it"


def test_a_missing_known_hosts_file_is_reported(plugin: Plugin, configure: Configure) -> None:
    with pytest.raises(Failure, match=r"host key: the known hosts file /nowhere does not exist; `make known-hosts`"):
        create(plugin, configure(knownHostsFile="/nowhere"))


# --- logins -----------------------------------------------------------------------------------------------------------------


def test_without_a_user_the_login_that_was_tried_is_named(plugin: Plugin, configure: Configure, tmp_path: Path) -> None:
    other = tmp_path / "other"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(other)
    other.chmod(0o600)
    host = configure(privateKeyFile=str(other), user="")
    with pytest.raises(
        Failure, match=rf"refused the login of {getpass.getuser()} \(who runs this program: the host has no `user`\)"
    ):
        create(plugin, host)


@pytest.mark.parametrize("form", ["pkcs8-pem", "openssh"])
def test_a_key_with_a_passphrase_is_reported(
    plugin: Plugin, configure: Configure, servers: SshServers, tmp_path: Path, form: str
) -> None:
    locked = tmp_path / "locked"
    servers.client_key.write_private_key(locked, form, passphrase="secret")
    with pytest.raises(Failure, match=r"auth: .* has a passphrase, and there is no (ssh-agent to hold it|.*locked\.pub)"):
        create(plugin, configure(privateKeyFile=str(locked)))


def test_a_refused_port_is_reported_without_the_host_in_the_state(plugin: Plugin, configure: Configure) -> None:
    host = configure()
    with pytest.raises(Failure, match=r"^node-1: unreachable: 127.0.0.1:1: Connection refused") as failure:
        create(plugin, host, connection={"port": 1})
    assert failure.value.kept is None


def test_an_unreachable_host_is_kept_at_refresh_and_marked(plugin: Plugin, configure: Configure) -> None:
    host = configure()
    inputs, outputs = host.inputs(connection={"port": 1}), {"facts": {"GPU_COUNT": "8"}}
    with pytest.raises(Failure, match=r"unreachable") as failure:
        plugin.read(HOST, "node-1", inputs, outputs)
    assert failure.value.kept.id == "node-1"
    assert decode(failure.value.kept.properties) == outputs
    assert decode(failure.value.kept.inputs) == inputs


def test_deleting_an_unreachable_host_says_how_to_give_it_up(plugin: Plugin, configure: Configure) -> None:
    host = configure()
    with pytest.raises(Failure, match=r"unreachable(.|\n)*set `lost: true` for it"):
        plugin.delete(HOST, "node-1", host.inputs(connection={"port": 1}))


def test_a_host_whose_temporary_directories_are_full_says_which(plugin: Plugin, server: SshServer, configure: Configure) -> None:
    full = "mktemp: failed to create directory via template '/tmp/incoming.XXXXXX': No space left on device"
    last = "the bundle cannot be unpacked in /tmp"
    server.forced = f"""echo '{{"event":"ready"}}'; echo "{full}" >&2; echo "{last}" >&2; exit 10"""
    with pytest.raises(Failure) as failure:
        create(plugin, configure())
    assert failure.value.message.splitlines() == [f"node-1: disk full: {last}", f"    {full}"]


@pytest.mark.parametrize(
    ("off_s", "said"),
    [
        (-3.2 * 31_557_600, ["3 years behind this machine's"]),
        (30 * 3600, ["30 hours ahead of this machine's"]),
        (-180, ["3 minutes behind this machine's"]),
        (60, []),
    ],
)
def test_a_clock_that_is_off_is_named_also_when_the_run_fails(
    plugin: Plugin, server: SshServer, configure: Configure, off_s: float, said: list[str]
) -> None:
    server.forced = f"""echo '{{"event":"ready"}}'; echo '{{"event":"clock","now":{time.time() + off_s:.0f}}}'; exit 10"""
    with pytest.raises(Failure):
        create(plugin, configure())
    warnings = plugin.engine.texts(engine_pb2.WARNING)
    assert len(warnings) == len(said)
    assert all(f"node-1: its clock is {words};" in warning for words, warning in zip(said, warnings, strict=True))


def test_a_login_to_a_host_that_still_counts_the_previous_session_is_retried(
    plugin: Plugin, server: SshServer, configure: Configure
) -> None:
    """sshd with `MaxSessions 1`."""
    server.refusals = 1
    create(plugin, configure())
    server.refusals = 2
    with pytest.raises(Failure, match=r"^node-1: unreachable: the host refused to start a command: open failed$"):
        create(plugin, configure())


# --- sudo -------------------------------------------------------------------------------------------------------------------

SUDO = """#!/bin/sh
# Stands in for sudo: asks for the password on standard error and reads it from standard input, three times.
mode={mode}
echo "$@" >>{log}
prompt=$SUDO_PROMPT asks=no
while [ $# -gt 0 ]; do
  case $1 in
    -S) asks=yes ;;
    -n) asks=never ;;
    --) shift; break ;;
  esac
  shift
done
[ "$mode" = free ] && exec "$@"
[ "$mode" = absent ] && {{ echo "sh: 1: sudo: not found" >&2; exit 127; }}
[ "$mode" = forbidden ] && {{ echo "sudo: ops is not in the sudoers file" >&2; exit 1; }}
[ "$asks" = yes ] || {{ echo "sudo: a password is required" >&2; exit 1; }}
echo "We trust you have received the usual lecture." >&2
for _ in 1 2 3; do
  printf {question} "$prompt" >&2
  read -r password || exit 1
  echo asked >>{log}.asked
  [ "$password" = right-password ] && {{ {then}; exec "$@"; }}
  echo "Sorry, try again." >&2
done
exit 1
"""


@pytest.fixture
def sudo(plugin: Plugin, servers: SshServers, configure: Configure, tmp_path: Path) -> Callable[..., LocalHost]:
    """A host whose sudo behaves as in `mode` and asks `question`; `password`: the one that the stack gives. `before`: what the
    login's start-up files do."""

    def sudo(
        mode: str, password: str | None = None, question: str = "%s", then: str = ":", before: str = "", **config: Any
    ) -> LocalHost:
        programs = tmp_path / "programs"
        programs.mkdir()
        log = tmp_path / "sudo.log"
        (programs / "sudo").write_text(SUDO.format(mode=mode, log=log, question=shlex.quote(question), then=then))
        (programs / "sudo").chmod(0o755)
        server = servers.ssh(path=programs)
        server.forced = f'{before}; eval "$SSH_ORIGINAL_COMMAND"' if before else ""
        config |= {"sudoPassword": password} if password else {}
        host = configure(sudo=None, knownHostsFile=servers.known_hosts(server), config=config)
        host.port = server.port
        return host

    return sudo


@pytest.mark.parametrize(("mode", "password"), [("free", None), ("free", "right-password"), ("asks", "right-password")])
def test_sudo_with_and_without_a_password(plugin: Plugin, sudo: Any, tmp_path: Path, mode: str, password: str | None) -> None:
    host = sudo(mode, password)
    create(plugin, host)
    assert host.placed("etc/gpu-fleet/gpu-fleet.env").startswith("DO=\n"), "the password must not end up in what the host reads"
    logged = (tmp_path / "sudo.log").read_text()
    assert "right-password" not in logged and "-u root -- " in logged, "sudoers may have another runas_default"
    assert not [line for line in plugin.engine.lines if "lecture" in line.message], "the output of a login is not progress"


@pytest.mark.parametrize(
    ("mode", "password", "message"),
    [
        ("forbidden", "right-password", "ops is not in the sudoers file"),
        ("absent", None, "sh: 1: sudo: not found; install it, or set `user` to root"),
    ],
)
def test_a_refusal_of_sudo_is_reported(plugin: Plugin, sudo: Any, mode: str, password: str | None, message: str) -> None:
    with pytest.raises(Failure, match=rf"^node-1: sudo: {message}") as failure:
        create(plugin, sudo(mode, password))
    assert failure.value.kept is None


def test_a_wrong_sudo_password_is_given_once(plugin: Plugin, sudo: Any, tmp_path: Path) -> None:
    with pytest.raises(Failure):
        create(plugin, sudo("asks", "wrong-password"))
    assert (tmp_path / "sudo.log.asked").read_text() == "asked\n", "each wrong password counts towards a lock-out"


@pytest.mark.parametrize(
    ("account", "password"), [("alice", "wrong-password"), ("alice", "right-password"), ("root", "wrong-password")]
)
def test_a_password_of_a_directory_that_hosts_share_is_given_to_one_first_and_a_wrong_one_to_two(
    plugin: Plugin, sudo: Any, tmp_path: Path, account: str, password: str
) -> None:
    """With accounts of a directory, each refusal of each host counts (ansible issues 12754 and 76236). A local account's is that
    host's alone, and two hosts with another password, which come first, keep it from no other host."""
    first, pending = sudo("asks", password), []
    (tmp_path / "programs/id").write_text(f"#!/bin/sh\necho {account}\n")  # alice is not in /etc/passwd
    (tmp_path / "programs/id").chmod(0o755)
    for number in range(12):
        host = copy.copy(first)
        host.name, host.prefix = f"node-{number}", tmp_path / f"host-{number}"
        pending.append(plugin.start_create(HOST, plugin.checked(HOST, host.inputs())))
    failures = []
    for answer in pending:
        try:
            answer()
        except Failure as failure:
            failures.append(str(failure).partition(": ")[2])
    asked = len((tmp_path / "sudo.log.asked").read_text().splitlines())
    if password == "right-password":
        assert (failures, asked) == ([], 12)
        return
    if account == "root":
        assert asked == len(failures) == 12 and all("sudoPassword was refused" in failure for failure in failures)
        return
    assert asked == 2
    refused = [failure for failure in failures if "the password of gpu-fleet:sudoPassword was refused" in failure]
    spared = [failure for failure in failures if failure not in refused]
    assert len(refused) == 2 and len(spared) == 10
    one, other = re.findall(r"it was refused on (node-\d+) and (node-\d+); with accounts of a directory", spared[0])[0]
    assert one != other and spared[0].startswith("sudo: the password of gpu-fleet:sudoPassword was not given: ")


@pytest.mark.parametrize(
    ("question", "then"),
    [
        ("[sudo: %s] Password: ", ":"),  # sudo-rs 0.2.5
        ("Password for ops@HPC.EXAMPLE.COM: ", ":"),  # libpam-krb5 4.11
        ("First Factor: ", "printf 'Second Factor (optional): ' >&2; read -r second; [ -z \"$second\" ] || exit 1"),  # sssd 2.8
    ],
)
def test_sudo_that_asks_in_other_words_gets_the_password(plugin: Plugin, sudo: Any, question: str, then: str) -> None:
    create(plugin, sudo("asks", "right-password", question, then))


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("1. Duo Push\n\nPasscode or option (1-1): ", r'it asks "Passcode or option \(1-1\):"'),
        ("One-time password (OATH) for `ops': ", 'it asks "One-time password'),  # libpam-oath
    ],
)
def test_what_sudo_asks_beyond_a_password_is_shown_and_not_answered(
    plugin: Plugin, sudo: Any, tmp_path: Path, question: str, message: str
) -> None:
    with pytest.raises(Failure, match=rf"^node-1: sudo: {message}"):
        create(plugin, sudo("asks", "right-password", question))
    assert not (tmp_path / "sudo.log.asked").exists(), "a password is no answer to that"


def test_what_a_login_prints_before_sudo_begins_is_not_answered(plugin: Plugin, sudo: Any) -> None:
    """A prompt in a start-up file, and `set -x`, which prints our own. A password sent to either would be run as a command."""
    host = sudo("free", "right-password", before="printf 'Password: ' >&2; sleep 2; set -x; exec 2>&2")
    assert create(plugin, host)["facts"] == {"GPU_COUNT": "8"}


def test_a_login_that_waits_for_an_answer_is_reported_with_what_it_asks(
    servers: SshServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpu_fleet.provider.host.READY_TIMEOUT_S", 2.0)
    server = servers.ssh()
    server.forced = (
        "echo 'Agent pid 12' >&2; printf 'Enter passphrase for /home/ops/.ssh/id_rsa: ' >&2; read -r passphrase; exit 1"
    )
    ssh = {"user": "ops", "privateKeyFile": servers.key_file(), "knownHostsFile": servers.known_hosts(server)}
    settings = Settings(ssh=ssh, sudo_password="right-password")
    hosts = Hosts(LocalTransport(), lambda: SshTransport(settings), sudo_passwords=SudoPasswords(common="right-password"))
    with pytest.raises(HostError, match=r'waits after "Enter passphrase for /home/ops/.ssh/id_rsa:"\n    Agent pid 12'):
        asyncio.run(hosts.check(Place(connection={"kind": "ssh", "address": "127.0.0.1", "port": server.port}), print))


@pytest.mark.parametrize(("of_host", "common"), [("right-password", "wrong-password"), ("right-password", None)])
def test_a_host_may_have_a_sudo_password_of_its_own(
    plugin: Plugin, sudo: Any, tmp_path: Path, of_host: str, common: str | None
) -> None:
    host = sudo("asks", common, sudoPasswords={"node-1": of_host, "node-2": "wrong-password"})
    create(plugin, host)
    assert "right-password" not in (tmp_path / "sudo.log").read_text()
    host.name = "node-2"
    with pytest.raises(Failure, match=r"^node-2: sudo: the password of gpu-fleet:sudoPasswords for node-2 was refused$"):
        create(plugin, host)


# --- bastions ---------------------------------------------------------------------------------------------------------------


def test_a_bastion_that_fails_is_named(plugin: Plugin, configure: Configure) -> None:
    host = configure(bastion={"host": "127.0.0.1", "port": 1})
    with pytest.raises(Failure, match=r"^node-1: unreachable: bastion 127.0.0.1:1: Connection refused"):
        create(plugin, host)


def test_a_bastion_that_refuses_is_tried_once_for_all_hosts_behind_it(
    plugin: Plugin, configure: Configure, servers: SshServers, server: SshServer, tmp_path: Path
) -> None:
    jump = servers.ssh(jump=True)
    other = tmp_path / "other"
    asyncssh.generate_private_key("ssh-ed25519").write_private_key(other)
    other.chmod(0o600)
    bastion = {"host": "127.0.0.1", "port": jump.port, "user": "jumper"}
    known = servers.known_hosts(server, jump)
    bundle = configure(bastion=bastion, knownHostsFile=known, privateKeyFile=str(other)).bundle
    hosts = [SshHost(tmp_path / f"behind-{number}", bundle, f"node-{number}") for number in range(5)]
    pending = [plugin.start_create(HOST, plugin.checked(HOST, host.inputs())) for host in hosts[:4]]
    messages = []
    for answer in [*pending, lambda: create(plugin, hosts[4])]:
        with pytest.raises(Failure) as failure:
            answer()
        messages.append(failure.value.message.partition(": ")[2])
    assert jump.users == ["jumper"], "each attempt may count towards a lock-out"
    cause = f"auth: bastion 127.0.0.1:{jump.port} refused the login of jumper with the key {other}"
    reference = f"auth: bastion 127.0.0.1:{jump.port} refused the login; the first host behind it reports why"
    assert sorted(messages) == sorted([cause, *[reference] * 4])


def test_a_connection_to_a_bastion_that_died_is_made_again(
    plugin: Plugin, configure: Configure, servers: SshServers, server: SshServer
) -> None:
    jump = servers.ssh(jump=True)
    host = configure(bastion={"host": "127.0.0.1", "port": jump.port}, knownHostsFile=servers.known_hosts(server, jump))
    create(plugin, host)
    servers.run(jump.drop())
    create(plugin, host)
    assert len(jump.users) == 2


def test_a_bastion_that_breaks_every_connection_is_named(
    plugin: Plugin, configure: Configure, servers: SshServers, server: SshServer
) -> None:
    jump = servers.ssh(jump=True)
    jump.breaks = True
    host = configure(bastion={"host": "127.0.0.1", "port": jump.port}, knownHostsFile=servers.known_hosts(server, jump))
    with pytest.raises(
        Failure, match=rf"^node-1: unreachable: 127.0.0.1:{server.port}: the connection by bastion 127.0.0.1:{jump.port} broke: "
    ):
        create(plugin, host)


def test_a_bastion_that_forwards_nothing_is_reported_separately(
    plugin: Plugin, configure: Configure, servers: SshServers, server: SshServer
) -> None:
    jump = servers.ssh(jump=False)
    host = configure(bastion={"host": "127.0.0.1", "port": jump.port}, knownHostsFile=servers.known_hosts(server, jump))
    with pytest.raises(Failure, match=r"^node-1: unreachable: 127.0.0.1:\d+: the bastion does not permit .*AllowTcpForwarding"):
        create(plugin, host)


def test_a_host_that_the_bastion_cannot_reach_is_named(
    plugin: Plugin, configure: Configure, servers: SshServers, server: SshServer
) -> None:
    jump = servers.ssh(jump=True)
    host = configure(bastion={"host": "127.0.0.1", "port": jump.port}, knownHostsFile=servers.known_hosts(server, jump))
    with pytest.raises(Failure, match=r"^node-1: unreachable: 127.0.0.1:1: "):
        create(plugin, host, connection={"port": 1})


# --- stopping, breaking, waiting --------------------------------------------------------------------------------------------


def test_a_connection_that_breaks_while_a_host_is_worked_on_keeps_it_in_the_state(
    plugin: Plugin, configure: Configure, servers: SshServers, server: SshServer
) -> None:
    host = configure()
    host.name = "breaks"
    answer = plugin.start_create(HOST, plugin.checked(HOST, host.inputs("hang")))
    plugin.engine.wait_for_status("waiting for ever")
    servers.run(server.drop())
    with pytest.raises(
        Failure,
        match=r"^breaks: unreachable: the connection broke while `apply` ran; the host may have rebooted .*the next `up`",
    ) as failure:
        answer()
    assert failure.value.kept.id == "breaks"
    assert is_gone_soon(child_of(host))


def login_error(port: int, known_hosts: str, limits: Limits) -> tuple[TransportError, float]:
    """What a login fails with, and after how many seconds."""

    async def login() -> None:
        transport = SshTransport(Settings(ssh={"user": "ops", "knownHostsFile": known_hosts}), limits)
        async with transport.session({"kind": "ssh", "address": "127.0.0.1", "port": port}):
            raise AssertionError("the login should have failed")

    begin = time.monotonic()
    with pytest.raises(TransportError) as failure:
        asyncio.run(login())
    return failure.value, time.monotonic() - begin


def test_a_host_that_does_not_answer_costs_two_dials(servers: SshServers) -> None:
    error, seconds = login_error(servers.silent(accepts=False), servers.known_hosts(), Limits(dial_s=0.2))
    assert error.code == "unreachable"
    assert "no answer within" in error.message
    assert 0.3 < seconds < 60
    assert 2 * Limits().dial_s <= 20, "a black-holed host may hold up a fleet for 20 s"


def test_a_host_that_accepts_and_stalls_is_given_up(servers: SshServers) -> None:
    error, _ = login_error(servers.silent(accepts=True), servers.known_hosts(), Limits(login_s=2))
    assert (error.code, "accepted the connection and then sent nothing" in error.message) == ("unreachable", True)
    assert Limits().login_s + Limits().start_s + READY_TIMEOUT_S <= 60, "a host that stalls may hold up a fleet for a minute"


def test_hosts_that_wait_for_their_turn_do_not_look_as_if_they_stalled(servers: SshServers, server: SshServer) -> None:
    """One after the other, as on a machine that is busy."""
    server.login_s = 2.0  # four of them take longer than the limit of one, which leaves room for a busy machine's cryptography
    ssh = {"user": "ops", "privateKeyFile": servers.key_file(), "knownHostsFile": servers.known_hosts(server)}
    transport = SshTransport(Settings(ssh=ssh), Limits(login_s=7, logins=1))

    async def login() -> None:
        async with transport.session({"address": "127.0.0.1", "port": server.port}):
            pass

    async def logins() -> None:
        await asyncio.gather(*(login() for _ in range(4)))

    asyncio.run(logins())
    assert len(server.users) == 4


def test_plan_hosts_warns_about_an_unreachable_host_and_continues(
    new_plugin: Callable[..., Plugin], configure: Configure
) -> None:
    plugin = new_plugin({"PLAN": "hosts"})
    host = configure(plugin)
    plugin.create(HOST, plugin.checked(HOST, host.inputs(connection={"port": 1})), preview=True)
    (warning,) = plugin.engine.texts(engine_pb2.WARNING)
    assert warning.startswith("node-1: unreachable: ")


def test_an_agent_that_does_not_answer_is_given_up(
    servers: SshServers, server: SshServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(servers.directory)  # the kernel takes no more than 107 bytes for the path of a socket
    agent = socket.socket(socket.AF_UNIX)
    agent.bind("agent")
    agent.listen()
    monkeypatch.setenv("SSH_AUTH_SOCK", "agent")
    error, seconds = login_error(server.port, servers.known_hosts(server), Limits(login_s=0.5))
    agent.close()
    assert error.code == "auth" and "the ssh-agent does not answer" in error.message and seconds < 60
