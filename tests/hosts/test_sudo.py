"""Logins that become root with the real sudo and the real sudo-rs, as sites configure them, over a real sshd."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from gpu_fleet.provider.envelope import Envelope
from gpu_fleet.provider.host import HostError, Hosts, Place, SudoPasswords
from gpu_fleet.provider.settings import Settings
from gpu_fleet.provider.ssh import SshTransport
from gpu_fleet.provider.transport import LocalTransport
from lab.hosts import Host, Site
from lab.hosts.image import SUDO_PASSWORD
from tests.provider.plugin import CONVERGE, bundle_tar

PLANTED = "planted-metrics-password"
CODE = "auth required pam_google_authenticator.so\n"
PASSWORD = "@include common-auth\n"
# pam_faillock(8); two failures lock the account.
LOCKING = (
    "auth required pam_faillock.so preauth deny=2\nauth [success=1 default=ignore] pam_unix.so\n"
    "auth [default=die] pam_faillock.so authfail deny=2\nauth sufficient pam_faillock.so authsucc deny=2\n"
)


@pytest.fixture
def host(site: Site) -> Iterator[Host]:
    """Debian 13, whose login `careful` has no cached sudo."""
    host = site.hosts["amd"]
    host.ssh("cp /etc/pam.d/sudo /root/pam; echo 'Defaults timestamp_timeout=0' >/etc/sudoers.d/test")
    yield host
    host.ssh("mv /root/pam /etc/pam.d/sudo; faillock --user careful --reset")
    host.ssh("rm -rf /etc/sudoers.d/test /usr/local/bin/sudo /var/log/sudo-io /home/careful/.google_authenticator")


def planned(site: Site, host: Host, password: str | None) -> str:
    """What a host says to a plan with secrets: nothing where it was reached, otherwise the first line of the error."""
    ssh = {"user": "careful", "privateKeyFile": str(site.key_file), "knownHostsFile": str(site.known_hosts_file)}
    hosts = Hosts(
        LocalTransport(),
        lambda: SshTransport(Settings(ssh=ssh)),
        sudo_passwords=SudoPasswords(common=password),
        secrets=[SUDO_PASSWORD],
    )
    envelope = Envelope(bundle=bundle_tar(CONVERGE.read_text()), settings={"DO": ""}, secrets={"metrics-password": PLANTED})
    place = Place(connection={"kind": "ssh", "address": host.address, "prefix": "/root/below"})
    try:
        asyncio.run(hosts.plan(place, envelope, lambda line: None))
    except HostError as error:
        return str(error).splitlines()[0]
    return ""


@pytest.mark.parametrize("sudo", ["sudo", "sudo-rs"])
@pytest.mark.parametrize(
    ("pam", "password", "message"),
    [
        (PASSWORD, SUDO_PASSWORD, ""),
        (PASSWORD, "wrong", "sudo: the password of gpu-fleet:sudoPassword was refused"),
        (PASSWORD, None, "is required; set gpu-fleet:sudoPassword, or let the login use sudo without one"),
        (CODE + PASSWORD, SUDO_PASSWORD, 'Verification code:", and can be given a password alone'),
        (PASSWORD + CODE, SUDO_PASSWORD, 'Verification code:", and can be given a password alone'),
        (PASSWORD + "account required pam_deny.so\n", SUDO_PASSWORD, "account validation failure, is your account locked?"),
    ],
    ids=["right", "wrong", "none", "code first", "code second", "account locked"],
)
def test_sudo_gets_the_password_that_it_asks_for(
    site: Site, host: Host, sudo: str, pam: str, password: str | None, message: str
) -> None:
    host.ssh(f"ln -s /usr/bin/{sudo} /usr/local/bin/sudo; cat >/etc/pam.d/sudo", stdin=f"{pam}@include common-account\n")
    if CODE in pam:
        host.ssh(
            "google-authenticator --time-based --disallow-reuse --force --no-rate-limit --window-size 3 --quiet", user="careful"
        )
    answer = planned(site, host, password)
    assert message.lower() in answer.lower() and bool(message) == bool(answer), answer


@pytest.mark.parametrize(
    ("defaults", "message"),
    [
        ("use_pty", ""),
        ("!use_pty,lecture=always", ""),
        ('passprompt="Your LDAP secret: "', ""),
        ("rootpw", "was refused; the password it asks for is root's (rootpw or targetpw)"),
        ("requiretty", "exempt the login: `Defaults:LOGIN !requiretty` in sudoers"),
        ("log_input", "the secrets were not sent; exempt the login: `Defaults:LOGIN !log_input, !log_stdin` in sudoers"),
        ("log_stdin,!use_pty", "the secrets were not sent; exempt the login"),
        ("log_input\nDefaults:careful !log_input, !log_stdin", ""),
        ("log_output", ""),
        ("noexec", "exempt the login, `Defaults:LOGIN !noexec`"),
    ],
)
def test_what_sudoers_set_is_obeyed_and_no_secret_is_recorded(site: Site, host: Host, defaults: str, message: str) -> None:
    host.ssh("cat >>/etc/sudoers.d/test", stdin=f"Defaults {defaults}\n")
    answer = planned(site, host, SUDO_PASSWORD)
    assert message in answer and bool(message) == bool(answer), answer
    recorded = host.ssh("find /var/log/sudo-io -type f -exec zcat -f {} +", check=False).stdout
    assert PLANTED not in recorded and SUDO_PASSWORD not in recorded


def test_a_wrong_password_is_one_failure_for_sudo_rs(site: Site, host: Host) -> None:
    """The end of its standard input is an empty password for it, and so another failure."""
    host.ssh("ln -s /usr/bin/sudo-rs /usr/local/bin/sudo; cat >/etc/pam.d/sudo", stdin=f"{LOCKING}@include common-account\n")
    planned(site, host, "wrong")
    assert planned(site, host, SUDO_PASSWORD) == ""
