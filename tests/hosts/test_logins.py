"""Who gets in: the provider and `ssh -o BatchMode=yes` with the same keys, agent and account, on a real sshd.

A named key is compared with `ssh -o IdentitiesOnly=yes -o IdentityFile=KEY`, none with ssh's default names. Where the two differ,
`differs` says why. What the provider reports names the reason that sshd gave.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from gpu_fleet.provider.host import HostError, Hosts, Place, SudoPasswords
from gpu_fleet.provider.settings import Settings
from gpu_fleet.provider.ssh import SshTransport
from gpu_fleet.provider.transport import LocalTransport
from lab.hosts import Host, Site
from tests.provider.keys import security_key

ACCOUNTS = {
    "plain": "",
    "banner": "Banner /etc/issue.net",
    "few": "MaxAuthTries 3",
    "certified": "TrustedUserCAKeys /etc/ssh/matrix_ca.pub\n  AuthorizedKeysFile none",
    "unauthorized": "AuthorizedKeysFile none",
    "code": "AuthenticationMethods publickey,keyboard-interactive\n  KbdInteractiveAuthentication yes",
    "both": "AuthenticationMethods publickey,password\n  PasswordAuthentication yes",
    "twokeys": "AuthenticationMethods publickey,publickey",
    "onlypassword": "AuthenticationMethods password\n  PasswordAuthentication yes",
    "modern": "PubkeyAcceptedAlgorithms ssh-ed25519",
    "newrsa": "PubkeyAcceptedAlgorithms rsa-sha2-512",
    "oldrsa": "PubkeyAcceptedAlgorithms rsa-sha2-256",
    "shut": "DenyUsers shut",
    "elsewhere": "AuthorizedKeysFile /etc/ssh/matrix_from",
    "past": "AuthorizedKeysFile /etc/ssh/matrix_past",
    "cloud": "AuthorizedKeysFile /etc/ssh/matrix_cloud",
    "home": "AuthorizedKeysFile .ssh/authorized_keys",
    "forced": "ForceCommand echo 'This server is for backups alone.'; exit 1",
    "shellless": "",
    "expired": "",
    "stale": "",
    "locked": "",
    "barred": "",
}
# A restart returns when sshd listens again, a reload before.
ARRANGE = """
useradd --shell /usr/sbin/nologin shellless
usermod --expiredate 1 expired; chage --lastday 0 stale; passwd --lock locked
for login in stale expired; do echo "$login:some-password" | chpasswd; done; chage --lastday 0 stale
echo 'Authorized use only.' >/etc/issue.net
cp /etc/pam.d/sshd /root/pam.sshd
sed -i '1i account required pam_listfile.so item=user sense=deny file=/etc/barred onerr=succeed' /etc/pam.d/sshd
echo barred >/etc/barred
install -d -o home -g home /home/home/.ssh; cp /etc/ssh/matrix_keys /home/home/.ssh/authorized_keys; chmod -R go+w /home/home
systemctl restart ssh
"""
CLOUD = 'Please login as the user \\"ubuntu\\" rather than the user \\"cloud\\".'  # as cloud-init writes it for root


@dataclass(frozen=True, kw_only=True)
class Keys:
    """`directory`: the keys of a workstation, by name. `home`: a home whose ~/.ssh has some of them under ssh's default names."""

    directory: Path

    def create(self) -> None:
        for name, options in {
            "ed25519": "-t ed25519",
            "rsa": "-t rsa -b 2048",
            "ecdsa": "-t ecdsa",
            "rsa-pem": "-t rsa -b 2048 -m PEM",
            "ecdsa-pem": "-t ecdsa -b 384 -m PEM",
            "pkcs8": "-t rsa -b 2048 -m PKCS8",
            "open": "-t ed25519",
            "token": "-t ed25519",
            "signed": "-t ed25519",
            "signed-rsa": "-t rsa -b 2048",
            "outdated": "-t ed25519",
            "misnamed": "-t ed25519",
            "ca": "-t ed25519",
            **{f"other{number}": "-t ed25519" for number in range(7)},
        }.items():
            self.run("ssh-keygen", "-q", "-N", "", "-C", name, "-f", name, *options.split())
        for name in ("ed25519", "rsa-pem", "pkcs8"):
            shutil.copy(self.directory / name, self.directory / f"{name}-locked")
            shutil.copy(self.directory / f"{name}.pub", self.directory / f"{name}-locked.pub")
            form = {"rsa-pem": ["-m", "PEM"], "pkcs8": ["-m", "PKCS8"]}.get(name, [])
            self.run("ssh-keygen", "-q", "-p", "-P", "", "-N", "a passphrase", "-f", f"{name}-locked", *form)
        shutil.copy(self.directory / "ed25519-locked", self.directory / "alone-locked")  # without .pub
        for name, principal, validity in (
            ("signed", "certified", "always:forever"),
            ("signed-rsa", "certified", "always:forever"),
            ("outdated", "certified", "20200101:20200102"),
            ("misnamed", "somebody", "always:forever"),
        ):
            self.run("ssh-keygen", "-q", "-s", "ca", "-I", name, "-n", principal, "-V", validity, f"{name}.pub")
        for name in ("signed", "ed25519"):  # their keys are in the agent alone
            for suffix in (".pub", "-cert.pub"):
                if (self.directory / f"{name}{suffix}").exists():
                    shutil.copy(self.directory / f"{name}{suffix}", self.directory / f"{name}-held{suffix}")
        (self.directory / "open").chmod(0o644)
        (self.directory / "token").rename(self.directory / "hidden")  # its .pub stays
        security_key(self.directory / "fido")
        (self.directory / "putty").write_text("PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\nComment: x\n")
        (self.directory / "putty").chmod(0o600)
        (self.directory / "crlf").write_bytes((self.directory / "ed25519").read_bytes().replace(b"\n", b"\r\n"))
        (self.directory / "unended").write_bytes((self.directory / "ed25519").read_bytes().rstrip())
        for name in ("crlf", "unended"):
            (self.directory / name).chmod(0o600)

    def run(self, *command: str, **environment: str) -> str:
        done = subprocess.run(
            command,
            cwd=self.directory,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        return done.stdout + done.stderr

    def public(self) -> str:
        private = ("ca", *OTHERS)
        files = [file for file in sorted(self.directory.glob("*.pub")) if "-cert" not in file.name and file.stem not in private]
        return "".join(file.read_text() for file in files)


@dataclass(frozen=True, kw_only=True)
class Case:
    """`key`: the named one. `home`: keys under ssh's default names. `agent`: keys that it holds, None where there is no agent.
    `error`: in ours, empty where both log in. `differs`: why ssh does otherwise."""

    name: str
    account: str = "plain"
    key: str = ""
    home: tuple[str, ...] = ()
    agent: tuple[str, ...] | None = None
    options: tuple[str, ...] = ()  # of ssh-add
    secret: str = ""
    error: str = ""
    differs: str = ""


OTHERS = tuple(f"other{number}" for number in range(7))
CASES = [
    Case(**{key: tuple(value) if isinstance(value, list) else value for key, value in one.items()})
    for one in yaml.safe_load(Path(__file__).with_name("logins.yaml").read_text())
]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Keys:
    keys = Keys(directory=tmp_path_factory.mktemp("keys"))
    keys.create()
    return keys


@pytest.fixture(scope="module")
def host(site: Site, keys: Keys) -> Iterator[Host]:
    host = site.hosts["metal"]
    public, ed25519 = keys.public(), (keys.directory / "ed25519.pub").read_text()
    files = {
        "matrix_ca.pub": (keys.directory / "ca.pub").read_text(),
        "matrix_keys": public,
        "matrix_from": f'from="203.0.113.0/24" {ed25519}',
        "matrix_past": f'expiry-time="20200101" {ed25519}',
        "matrix_cloud": f"no-pty,command=\"echo '{CLOUD}';echo;sleep 1;exit 142\" {ed25519}",
        "sshd_config.d/matrix.conf": "".join(
            f"Match User {account}\n  {settings or 'AuthorizedKeysFile /etc/ssh/matrix_keys'}\n"
            + ("" if "AuthorizedKeysFile" in settings or not settings else "  AuthorizedKeysFile /etc/ssh/matrix_keys\n")
            for account, settings in ACCOUNTS.items()
        ),
    }
    logins = " ".join(account for account in ACCOUNTS if account != "shellless")
    host.ssh(f"for login in {logins}; do useradd --create-home --shell /bin/bash $login; done")
    for name, text in files.items():
        host.ssh(f"cat >/etc/ssh/{name}", stdin=text)
    host.ssh(ARRANGE)
    yield host
    host.ssh("rm -r /etc/ssh/matrix_* /etc/ssh/sshd_config.d/matrix.conf /etc/barred; mv /root/pam.sshd /etc/pam.d/sshd")
    host.ssh(f"systemctl restart ssh; for login in {' '.join(ACCOUNTS)}; do userdel --remove --force $login; done", check=False)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Path]:
    socket = Path("/tmp") / f"gpu-fleet-agent-{os.getpid()}"  # the kernel takes no more than 107 bytes for its path
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    while not socket.exists():
        time.sleep(0.02)
    yield socket
    process.terminate()
    process.wait()
    socket.unlink(missing_ok=True)


def ours(case: Case, site: Site, host: Host, keys: Keys) -> str:
    """Nothing where the host was reached, otherwise the first line of the error."""
    ssh = {"user": case.account, "knownHostsFile": str(site.known_hosts_file), "sudo": False}
    if case.key:
        ssh["privateKeyFile"] = str(keys.directory / case.key)
    secret = (keys.directory / case.secret).read_text() if case.secret else None
    settings = Settings(ssh=ssh, ssh_private_key=secret)
    hosts = Hosts(LocalTransport(), lambda: SshTransport(settings), sudo_passwords=SudoPasswords())
    try:
        asyncio.run(hosts.check(Place(connection={"kind": "ssh", "address": host.address}), lambda line: None))
    except HostError as error:
        return str(error).splitlines()[0]
    return ""


def of_ssh(case: Case, site: Site, host: Host, keys: Keys, home: Path) -> str:
    """The same of ssh(1)."""
    named = ["-o", "IdentitiesOnly=yes", "-o", f"IdentityFile={case.key}"] if case.key else []
    default = [word for file in sorted(home.glob(".ssh/id_*")) for word in ("-i", str(file))] or ["-o", "IdentityFile=none"]
    options = [
        "-F",
        "none",
        "-o",
        "BatchMode=yes",
        "-o",
        "StrictHostKeyChecking=yes",
        "-o",
        f"UserKnownHostsFile={site.known_hosts_file}",
    ]
    output = keys.run(
        "ssh", *options, *(named or default), "-l", case.account, host.address, "sh -c 'echo is in'", SSH_ASKPASS="/bin/false"
    )
    return "" if "is in" in output else output


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.replace(" ", "-"))
def test_the_provider_gets_in_where_ssh_does_and_says_why_not(
    case: Case, site: Site, host: Host, keys: Keys, agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (tmp_path / ".ssh").mkdir(mode=0o700)
    for name in case.home:
        shutil.copy(
            keys.directory / name.removeprefix("id_").replace("rsa-", "rsa-pem-"),
            tmp_path / ".ssh" / name.removesuffix("-locked"),
        )
    if case.agent is not None:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
        for name in case.agent:
            # The certificate beside it would go in, too.
            added = shutil.copy(keys.directory / name, tmp_path / "added")
            keys.run("ssh-add", "-q", *case.options, str(added))
    answer, theirs = ours(case, site, host, keys), of_ssh(case, site, host, keys, tmp_path)
    assert case.error in answer and bool(case.error) == bool(answer), f"{answer}\nssh: {theirs}"
    assert (bool(answer) == bool(theirs)) == (not case.differs), f"{answer}\nssh: {theirs}"
