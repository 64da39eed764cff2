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


LENIENT = "asyncssh reads what libcrypto refuses"
SHA_256 = "of both that sshd announces, for all users together, asyncssh signs with SHA-256 and ssh with SHA-512"
OTHERS = tuple(f"other{number}" for number in range(7))
CASES = (
    # forms of a named key
    *(Case(name=f"a named key, {key}", key=key) for key in ("ed25519", "rsa", "ecdsa", "rsa-pem", "ecdsa-pem", "pkcs8")),
    Case(name="a named key with the ends of lines of Windows", key="crlf", differs=LENIENT),
    Case(name="a named key without its last newline", key="unended", differs=LENIENT),
    Case(name="a named key that is not there", key="nowhere", error="nowhere cannot be read: No such file or directory"),
    Case(name="a named key that others read", key="open", error="open can be read by others (mode 0644); `chmod 600"),
    Case(name="a key of PuTTY", key="putty", error="PuTTY's format"),
    Case(name="a security key", key="fido", error="is on a security key (FIDO2), which is touched for each login"),
    Case(
        name="a key that is not authorized",
        account="unauthorized",
        key="ed25519",
        error="refused the login of unauthorized with the key",
    ),
    # passphrases and agents
    *(
        Case(name=f"{key} in the agent", key=key, agent=(held,))
        for key, held in (
            ("ed25519-locked", "ed25519"),
            ("alone-locked", "ed25519"),
            ("rsa-pem-locked", "rsa-pem"),
            ("pkcs8-locked", "pkcs8"),
            ("ed25519.pub", "ed25519"),
            ("token", "hidden"),
        )
    ),
    Case(name="a passphrase and no agent", key="ed25519-locked", error="has a passphrase, and there is no ssh-agent"),
    Case(
        name="a passphrase and an agent without the key",
        key="ed25519-locked",
        agent=("rsa",),
        error="does not hold it; add it with",
    ),
    Case(name="a public key and no agent", key="ed25519.pub", error="ed25519.pub is a public key, and there is no ssh-agent"),
    Case(name="a key of the agent alone", agent=("rsa",)),
    Case(
        name="an agent that refuses to sign",
        agent=("rsa",),
        options=("-c",),
        error="refused the login of plain with any key of the ssh-agent",
    ),
    Case(name="the named key of an agent of eight", key="ed25519-locked", agent=(*OTHERS, "ed25519")),
    Case(name="the named public key of an agent of eight", key="ed25519.pub", agent=(*OTHERS, "ed25519")),
    Case(name="a named key beside an agent of seven others", key="ed25519", agent=OTHERS),
    Case(name="an agent of eight, the last one the default key", home=("id_ed25519",), agent=(*OTHERS, "ed25519")),
    Case(
        name="an agent of eight strangers",
        account="few",
        agent=OTHERS,
        error="it gave up after 3 keys: name one by `privateKeyFile`",
    ),
    Case(name="an agent of two strangers and a default key", account="few", agent=OTHERS[:2], home=("id_ed25519",)),
    Case(name="a default key", home=("id_rsa", "id_ed25519")),
    Case(
        name="a default key with a passphrase", home=("id_rsa-locked",), error="with any key of ~/.ssh, and there is no ssh-agent"
    ),
    Case(name="no key at all", error="refused the login of plain with any key of ~/.ssh"),
    Case(name="the secret key, and a file that is elsewhere", key="nowhere", secret="ed25519", differs="it has no secrets"),
    # certificates
    Case(name="a certificate beside the key", account="certified", key="signed"),
    Case(name="a certificate of an RSA key", account="certified", key="signed-rsa"),
    Case(name="a certificate whose key the agent holds", account="certified", key="signed-held", agent=("signed",)),
    Case(name="a certificate that is over", account="certified", key="outdated", error="outdated-cert.pub: Certificate expired"),
    Case(
        name="a certificate of somebody else",
        account="certified",
        key="misnamed",
        error="misnamed-cert.pub: Certificate principal mismatch",
    ),
    Case(name="a certificate that is not wanted", key="signed"),
    # algorithms
    Case(name="RSA with SHA-2 of 512 bits", account="newrsa", key="rsa", error="refused the login of newrsa", differs=SHA_256),
    Case(name="RSA with SHA-2 of 256 bits in the agent", account="oldrsa", key="rsa.pub", agent=("rsa",), differs=SHA_256),
    Case(
        name="RSA where Ed25519 alone is accepted", account="modern", key="rsa", error="refused the login of modern with the key"
    ),
    # accounts
    Case(name="a banner", account="banner", key="ed25519"),
    Case(name="a banner and a key that is refused", account="banner", key="token.pub", agent=("rsa",), error="does not hold it"),
    Case(name="an account without shell", account="shellless", key="ed25519", error="This account is currently not available."),
    Case(name="an account that has expired", account="expired", key="ed25519", error="Your account has expired"),
    Case(
        name="a password that must be changed",
        account="stale",
        key="ed25519",
        error="Password change required but no TTY available.",
    ),
    Case(name="a locked password", account="locked", key="ed25519"),
    Case(name="an account that PAM bars", account="barred", key="ed25519", error="ended the login of barred: "),
    Case(name="an account that is denied", account="shut", key="ed25519", error="refused the login of shut with the key"),
    Case(
        name="an account that does not exist",
        account="nobody-here",
        key="ed25519",
        error="refused the login of nobody-here with the key",
    ),
    Case(
        name="a key for another address", account="elsewhere", key="ed25519", error="refused the login of elsewhere with the key"
    ),
    Case(name="a key that is over", account="past", key="ed25519", error="refused the login of past with the key"),
    Case(
        name="the wrong user of a cloud image",
        account="cloud",
        key="ed25519",
        error='Please login as the user "ubuntu" rather than the user "cloud".',
    ),
    Case(name="keys that others can write", account="home", key="ed25519", error="refused the login of home with the key"),
    Case(name="a forced command", account="forced", key="ed25519", error="This server is for backups alone."),
    # second factors
    Case(name="a code after the key", account="code", key="ed25519", error="requires an answer (keyboard-interactive) besides"),
    Case(name="a password after the key", account="both", key="ed25519", error="requires a password besides"),
    Case(name="two keys", account="twokeys", agent=("rsa", "ed25519")),
    Case(name="a password alone", account="onlypassword", key="ed25519", error="refused the login of onlypassword with the key"),
)


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
