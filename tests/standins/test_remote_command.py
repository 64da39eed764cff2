"""command:remote:Command and command:remote:CopyToRemote, over a real SSH connection on loopback."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import asyncssh
import pytest

from tests.standins.running import ASSET, SIGNATURE, UNKNOWN, Refused, Resource, RunningPlugin, is_secret, revealed
from tests.standins.ssh_server import PASSWORD, USER, SshServer


@pytest.fixture
def resource(command: RunningPlugin) -> Resource:
    return command.resource("command:remote:Command")


@pytest.fixture
def copy(command: RunningPlugin) -> Resource:
    return command.resource("command:remote:CopyToRemote")


def connection(ssh: SshServer, **more: Any) -> dict[str, Any]:
    return {"host": "127.0.0.1", "port": ssh.port, "user": USER, "password": PASSWORD, **more}


def text(content: str, hash_: str = "1") -> dict[str, str]:
    return {SIGNATURE: ASSET, "text": content, "hash": hash_}


def path(path: Path | str, hash_: str = "1") -> dict[str, str]:
    return {SIGNATURE: ASSET, "path": str(path), "hash": hash_}


def test_a_command_runs_on_the_host_with_stdin(resource: Resource, ssh: SshServer) -> None:
    outputs = resource.create(connection=connection(ssh), create="cat; echo problem >&2", stdin="given\n")
    assert (outputs["stdout"], outputs["stderr"]) == ("given", "problem")


def test_a_key_logs_in(resource: Resource, ssh: SshServer) -> None:
    with_key = {"host": "127.0.0.1", "port": ssh.port, "user": USER, "privateKey": ssh.private_client_key}
    assert resource.create(connection=with_key, create="echo in")["stdout"] == "in"


def test_an_encrypted_key_logs_in_with_its_password(resource: Resource, ssh: SshServer) -> None:
    encrypted = ssh.client_key.export_private_key("pkcs1-pem", passphrase="key password").decode()
    with_key = {
        "host": "127.0.0.1",
        "port": ssh.port,
        "user": USER,
        "privateKey": encrypted,
        "privateKeyPassword": "key password",
    }
    assert resource.create(connection=with_key, create="echo in")["stdout"] == "in"


def test_the_right_host_key_is_accepted(resource: Resource, ssh: SshServer) -> None:
    outputs = resource.create(connection=connection(ssh, hostKey=ssh.public_host_key), create="echo trusted")
    assert outputs["stdout"] == "trusted"


def test_another_host_key_is_refused(resource: Resource, ssh: SshServer) -> None:
    other = asyncssh.generate_private_key("ssh-ed25519").export_public_key().decode().strip()
    with pytest.raises(Refused, match="after 0 failed attempts"):
        resource.create(connection=connection(ssh, hostKey=other, dialErrorLimit=0), create="echo never")
    assert ssh.logins == 0


def test_a_failed_dial_is_retried_up_to_the_limit(command: RunningPlugin, resource: Resource, ssh: SshServer) -> None:
    with pytest.raises(Refused, match="after 2 failed attempts"):
        resource.create(connection=connection(ssh, password="wrong", dialErrorLimit=2), create="echo never")
    assert {"Dial 1/2 failed: retrying", "Dial 2/2 failed: retrying"} <= set(command.engine.lines)


def test_a_proxy_leads_to_the_host(resource: Resource, ssh: SshServer) -> None:
    through = connection(ssh, proxy=connection(ssh))
    assert resource.create(connection=through, create="echo behind the proxy")["stdout"] == "behind the proxy"
    assert ssh.logins == 2


def test_a_failing_command_is_reported_with_its_status_and_everything_it_printed(resource: Resource, ssh: SshServer) -> None:
    with pytest.raises(Refused) as refused:
        resource.create(connection=connection(ssh), create="echo the cause; exit 4")
    assert str(refused.value) == 'Process exited with status 4: running "echo the cause; exit 4":\nthe cause\n'


def test_update_and_delete_run_their_commands(resource: Resource, ssh: SshServer, tmp_path: Path) -> None:
    inputs = {"connection": connection(ssh), "create": "echo made", "delete": f"echo gone > {tmp_path}/trace"}
    resource.create(**inputs)
    assert resource.update(**inputs, update='echo "was $PULUMI_COMMAND_STDOUT"')["stdout"] == "was made"
    resource.delete()
    assert (tmp_path / "trace").read_text() == "gone\n"


def test_the_whole_connection_is_secret_and_gets_its_defaults(resource: Resource) -> None:
    checked = resource.checked({"connection": {"host": "gpu-node-1", "proxy": {"host": "jump"}}, "create": "true"})
    assert is_secret(checked["connection"]), "it may hold a password"
    given = revealed(checked["connection"])
    assert given["user"] == "root" and given["port"] == 22 and given["dialErrorLimit"] == 10 and given["perDialTimeout"] == 15
    assert given["proxy"]["port"] == 22


def test_a_preview_opens_no_connection(resource: Resource) -> None:
    assert resource.preview(connection={"host": "192.0.2.1"}, create="true")["stdout"] == UNKNOWN


@pytest.mark.parametrize(
    ("inputs", "named"),
    [
        ({"create": "true"}, "connection"),
        ({"create": "true", "connection": {"port": 22}}, "host"),
        ({"create": "true", "connection": {"host": "h", "privatekey": "PRIVATE"}}, "privatekey"),
        ({"create": "true", "connection": {"host": "h"}, "dir": "/"}, "dir"),
    ],
)
def test_inputs_it_does_not_know_and_those_it_misses_are_refused(
    resource: Resource, inputs: dict[str, object], named: str
) -> None:
    failures = resource.failures(inputs)
    assert any(named in found or named in reason for found, reason in failures.items()), failures


def test_a_text_becomes_a_file_and_its_directories_are_made(copy: Resource, ssh: SshServer, tmp_path: Path) -> None:
    copy.create(connection=connection(ssh), source=text("content"), remotePath=f"{tmp_path}/a/b/file.txt")
    assert (tmp_path / "a/b/file.txt").read_text() == "content"


def test_a_file_is_copied_into_an_existing_directory(copy: Resource, ssh: SshServer, tmp_path: Path) -> None:
    (tmp_path / "file.txt").write_text("content")
    (tmp_path / "there").mkdir()
    copy.create(connection=connection(ssh), source=path(tmp_path / "file.txt"), remotePath=f"{tmp_path}/there")
    assert (tmp_path / "there/file.txt").read_text() == "content"


@pytest.mark.parametrize(("ending", "place"), [("", "target/tree/deep/file"), ("/", "target/deep/file")])
def test_a_directory_is_copied_with_all_below_it(copy: Resource, ssh: SshServer, tmp_path: Path, ending: str, place: str) -> None:
    (tmp_path / "tree/deep").mkdir(parents=True)
    (tmp_path / "tree/deep/file").write_text("content")
    source = path(f"{tmp_path}/tree{ending}")
    copy.create(connection=connection(ssh), source=source, remotePath=f"{tmp_path}/target")
    assert (tmp_path / place).read_text() == "content"


def test_only_another_content_or_place_is_copied_again(copy: Resource, ssh: SshServer, tmp_path: Path) -> None:
    target = tmp_path / "file"
    inputs = {"connection": connection(ssh), "remotePath": str(target)}
    copy.create(**inputs, source=text("one", "1"))
    target.write_text("changed on the host")
    copy.update(**{**inputs, "connection": connection(ssh, dialErrorLimit=3)}, source=text("one", "1"))
    assert target.read_text() == "changed on the host", "as the official plugin: a new connection alone copies nothing"
    copy.update(**inputs, source=text("two", "2"))
    assert target.read_text() == "two"


def test_a_copied_file_stays_when_the_resource_is_deleted(copy: Resource, ssh: SshServer, tmp_path: Path) -> None:
    copy.create(connection=connection(ssh), source=text("content"), remotePath=f"{tmp_path}/file")
    copy.delete()
    assert (tmp_path / "file").exists()


def test_a_text_needs_a_file_name(copy: Resource, ssh: SshServer, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="is a directory"):
        copy.create(connection=connection(ssh), source=text("content"), remotePath=str(tmp_path))
