"""`make known-hosts` against SSH servers on loopback: what is printed, and what is written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import asyncssh
import pytest

from gpu_fleet.operations.engine import OperationError
from gpu_fleet.operations.known_hosts import collect_for, private_key_of
from gpu_fleet.operations.stack import Configuration
from gpu_fleet.stackfile.config import hosts_of
from tests.provider.ssh_server import SshServer, SshServers


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[SshServers]:
    made = SshServers(tmp_path)
    yield made
    made.close()


class Run:
    """A stack of loopback hosts, and `make known-hosts` for it."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]):
        self.directory, self._capsys = directory, capsys
        self.trusted = directory / "inventory/known_hosts"
        self.review = directory / "inventory/known_hosts.new"

    def trust(self, *lines: str) -> None:
        self.trusted.parent.mkdir(exist_ok=True)
        self.trusted.write_text("".join(f"{line}\n" for line in lines))

    def __call__(
        self, hosts: dict[str, dict[str, object]], *, private_key: Callable[[], str | None] = lambda: None, **ssh: object
    ) -> tuple[int, str]:
        """Exit status and output. `hosts`: by name, on 127.0.0.1 unless they name another address."""
        entries = {name: {"address": "127.0.0.1", **values} for name, values in hosts.items()}
        login = {"user": "ops", "knownHostsFile": "inventory/known_hosts", **ssh}
        status = collect_for(hosts_of({"hosts": entries, "ssh": login}, self.directory), private_key)
        return status, self._capsys.readouterr().out


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(tmp_path, capsys)


def line(server: SshServer) -> str:
    return f"[127.0.0.1]:{server.port} {server.public_key}"


def fingerprint(server: SshServer) -> str:
    return asyncssh.import_public_key(server.public_key).get_fingerprint()


def test_new_keys_are_proposed_beside_a_file_that_need_not_be_there_yet(run: Run, servers: SshServers) -> None:
    one, two = servers.ssh(), servers.ssh()
    status, said = run({"gpu-1": {"port": one.port}, "gpu-2": {"port": two.port}})
    assert status == 0
    assert not run.trusted.exists(), "only a person makes a key trusted"
    for name, server in (("gpu-1", one), ("gpu-2", two)):
        assert fingerprint(server) in said
        assert f"{line(server)} {name} {fingerprint(server)}\n" in run.review.read_text()
    assert "mv inventory/known_hosts.new inventory/known_hosts" in said


def test_no_login_is_tried_anywhere(run: Run, servers: SshServers) -> None:
    server = servers.ssh()
    run({"gpu-1": {"port": server.port}})
    assert server.users == []


def test_the_provider_can_connect_once_the_proposed_key_is_accepted(run: Run, servers: SshServers) -> None:
    server = servers.ssh()
    run({"gpu-1": {"port": server.port}})
    run.review.rename(run.trusted)
    status, said = run({"gpu-1": {"port": server.port}})
    assert status == 0
    assert "1 known and unchanged." in said
    assert not run.review.exists()


def test_trusted_lines_are_kept_even_without_a_newline_at_the_end_of_the_file(run: Run, servers: SshServers) -> None:
    known, new = servers.ssh(), servers.ssh()
    run.trust("# reviewed by ops")
    run.trusted.write_text(run.trusted.read_text() + line(known))
    run({"gpu-1": {"port": known.port}, "gpu-2": {"port": new.port}})
    assert run.review.read_text().splitlines()[:2] == ["# reviewed by ops", line(known)]
    assert len(run.review.read_text().splitlines()) == 3


def test_a_key_that_changed_is_loud_fails_and_is_proposed_nowhere(run: Run, servers: SshServers) -> None:
    was, now, new = servers.ssh(), servers.ssh(), servers.ssh()
    run.trust(f"[127.0.0.1]:{now.port} {was.public_key}")
    status, said = run({"gpu-1": {"port": now.port}, "gpu-2": {"port": new.port}})
    assert status == 1
    assert "1 HOST KEY HAS CHANGED" in said
    assert fingerprint(now) in said, "what it shows"
    assert fingerprint(was) in said, "what was known"
    assert f"ssh-keygen -R '[127.0.0.1]:{now.port}' -f inventory/known_hosts" in said
    assert now.public_key not in run.review.read_text()
    assert new.public_key in run.review.read_text()


def test_a_key_of_another_type_than_the_known_one_has_changed_too(run: Run, servers: SshServers) -> None:
    server = servers.ssh()
    rsa = asyncssh.generate_private_key("ssh-rsa", key_size=2048)
    run.trust(f"[127.0.0.1]:{server.port} {rsa.export_public_key().decode().strip()}")
    status, said = run({"gpu-1": {"port": server.port}})
    assert status == 1
    assert rsa.get_fingerprint() in said


def test_a_revoked_key_is_loud(run: Run, servers: SshServers) -> None:
    server = servers.ssh()
    run.trust(line(server), f"@revoked {line(server)}")
    status, said = run({"gpu-1": {"port": server.port}})
    assert status == 1
    assert "REVOKED" in said
    assert not run.review.exists()


def test_unreachable_hosts_are_reported_with_the_reason_and_delay_no_other(run: Run, servers: SshServers) -> None:
    server = servers.ssh()
    status, said = run({"dead": {"port": 1}, "gpu-1": {"port": server.port}, "nowhere": {"address": "gpu.invalid"}})
    assert status == 1
    assert "Connection refused" in said
    assert "gpu.invalid: " in said
    assert server.public_key in run.review.read_text()


def test_hosts_under_a_certificate_authority_need_no_line_of_their_own(run: Run, servers: SshServers) -> None:
    authority = asyncssh.generate_private_key("ssh-ed25519")
    run.trust(f"@cert-authority [127.0.0.1]:* {authority.export_public_key().decode().strip()}")
    status, said = run({"gpu-1": {"port": servers.ssh().port}})
    assert status == 0
    assert "1 trusted through a certificate authority." in said


def test_a_host_whose_key_is_in_the_stack_file_is_not_contacted(run: Run, servers: SshServers) -> None:
    server = servers.ssh()
    status, said = run({"gpu-1": {"port": server.port, "hostKey": server.public_key}})
    assert status == 0
    assert "No host key to collect" in said


def test_nobody_logs_in_to_a_bastion_whose_key_is_not_trusted(run: Run, servers: SshServers) -> None:
    jump, server = servers.ssh(jump=True), servers.ssh()
    bastion = {"host": "127.0.0.1", "port": jump.port, "user": "jumper"}
    status, said = run({"gpu-1": {"port": server.port}}, bastion=bastion, privateKeyFile=servers.key_file())
    assert status == 1
    assert "whose key is not trusted yet" in said
    assert jump.users == []
    assert jump.public_key in run.review.read_text()

    run.review.rename(run.trusted)
    status, said = run({"gpu-1": {"port": server.port}}, bastion=bastion, privateKeyFile=servers.key_file())
    assert status == 0, said
    assert jump.users == ["jumper"]
    assert server.public_key in run.review.read_text()


def test_the_secret_key_of_the_stack_opens_the_bastion_and_is_read_only_then(run: Run, servers: SshServers) -> None:
    jump, server = servers.ssh(jump=True), servers.ssh()
    run.trust(line(jump))
    asked = []

    def private_key() -> str:
        asked.append(True)
        return servers.client_key.export_private_key().decode()

    run({"gpu-1": {"port": server.port}}, private_key=private_key)
    assert not asked, "without a bastion there is no login anywhere"
    bastion = {"host": "127.0.0.1", "port": jump.port, "user": "jumper"}
    status, said = run({"gpu-1": {"port": server.port}}, private_key=private_key, bastion=bastion)
    assert (status, jump.users) == (0, ["jumper"]), said


def test_pulumi_opens_the_secret_key_of_a_stack_that_has_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pulumi = tmp_path / "pulumi"
    pulumi.write_text('#!/bin/sh\n[ "$*" = "--non-interactive config get gpu-fleet:sshPrivateKey --stack s" ] && echo KEY\n')
    pulumi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    without = Configuration(file=tmp_path / "Pulumi.s.yaml", values={"ssh": {"user": "ops"}}, secrets=frozenset())
    assert private_key_of("s", without) is None
    with_key = replace(without, secrets=frozenset({"sshPrivateKey"}))
    assert private_key_of("s", with_key) == "KEY\n"
    pulumi.write_text("#!/bin/sh\necho 'error: incorrect passphrase' >&2\nexit 1\n")
    with pytest.raises(OperationError, match=r"cannot read the secret gpu-fleet:sshPrivateKey .*: incorrect passphrase"):
        private_key_of("s", with_key)


def test_a_known_key_of_a_less_preferred_type_is_negotiated(run: Run, servers: SshServers) -> None:
    """As with hosts whose RSA key was collected long ago."""
    keys = [asyncssh.generate_private_key("ssh-ed25519"), asyncssh.generate_private_key("ssh-rsa", key_size=2048)]
    acceptor = servers.run(_listen(keys))
    try:
        run.trust(f"[127.0.0.1]:{acceptor.get_port()} {keys[1].export_public_key().decode().strip()}")
        status, said = run({"gpu-1": {"port": acceptor.get_port()}})
    finally:
        servers.run(_close(acceptor))
    assert status == 0, said
    assert "1 known and unchanged." in said


async def _listen(keys: list[asyncssh.SSHKey]) -> asyncssh.SSHAcceptor:
    return await asyncssh.listen("127.0.0.1", 0, server_host_keys=keys)


async def _close(acceptor: asyncssh.SSHAcceptor) -> None:
    acceptor.close()
    await acceptor.wait_closed()
