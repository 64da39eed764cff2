"""Why a package was not installed, from the texts of real apt, dpkg and dnf on hosts that were broken by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_fleet.on_host.converge import package_failure, transaction_shared
from gpu_fleet.on_host.package_errors import Reason, reason
from gpu_fleet.on_host.probe import install

_UNMET = """The following packages have unmet dependencies:
 ours : Depends: ours-helper but it is not going to be installed
E: Unable to correct problems, you have held broken packages.
"""
_HELD = """The following held packages will be changed:
  ours
E: Held packages were changed and -y was used without --allow-change-held-packages.
"""
_STATOVERRIDE = """Get:2 file:/srv/packages  ours 1.20.0-1 [30.9 kB]
dpkg: unrecoverable fatal error, aborting:
 unknown system user 'ghost' in statoverride file; the system user got removed
before the override, which is most probably a packaging bug, to recover you
can remove the override manually with dpkg-statoverride
E: Sub-process /usr/bin/dpkg returned an error code (2)
"""
_ARCHIVE = """dpkg: error processing archive /srv/packages/./ours_1.20.0-1_amd64.deb (--unpack):
 unable to create '/usr/share/doc/ours/a.dpkg-new' (while processing './usr/share/doc/ours/a'): No space left on device
Errors were encountered while processing:
E: Sub-process /usr/bin/dpkg returned an error code (1)
"""
_HOOK = """etckeeper: uncommitted changes in /etc
E: Problem executing scripts DPkg::Pre-Invoke 'etckeeper pre-install'
E: Sub-process returned an error code
"""
_LISTS = """E: Conflicting values set for option Signed-By regarding source file:/srv/packages/ /: /etc/a.gpg != /etc/b.gpg
E: The list of sources could not be read.
"""
_MISSING = "E: Unable to locate package ours\n"
_LOCK = "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 1234 (unattended-upgr)\nE: Unable to acquire\n"
_HELPER = """Error:
 Problem: package ours-1.20.0-1.x86_64 requires ours-helper, but none of the providers can be installed
  - conflicting requests
  - package ours-helper-1.20.0-1.x86_64 is filtered out by exclude filtering
"""


@pytest.mark.parametrize(
    ("said", "held", "expected"),
    [
        (_UNMET, ["ours-helper", "linux-image-amd64"], ("packages", "ours-helper is held", "apt-mark unhold ours-helper)")),
        (_HELD, ["ours"], ("packages", "ours is held on this host", "apt-mark unhold ours)")),
        (_UNMET, ["linux-image-amd64"], ("packages", "ours : Depends: ours-helper but it is not going to be", "--simulate")),
        (_STATOVERRIDE, [], ("packages", "unknown system user 'ghost' in statoverride file; the system user got removed", "")),
        (_ARCHIVE, [], ("packages", "unable to create '/usr/share/doc/ours/a.dpkg-new'", "dpkg --configure -a")),
        (
            "dpkg: error processing package ours (--configure):\r\n installed ours package post-installation script failed\r\n",
            [],
            ("packages", "ours (--configure): installed ours package post-installation script failed", "--configure -a"),
        ),
        (_HOOK, [], ("packages", "Problem executing scripts DPkg::Pre-Invoke 'etckeeper pre-install'", "grep -r Invoke")),
        (_LISTS, [], ("packages", "Conflicting values set for option Signed-By regarding source file:/srv", "correct that file")),
        (_LOCK, [], ("locked", "/var/lib/dpkg/lock-frontend. It is held by process 1234 (unattended-upgr)", "wait for it")),
        (_MISSING, [], ("download", "Unable to locate package ours", "apt-cache policy ours")),
    ],
)
def test_apt_s_reason_and_what_to_do(said: str, held: list[str], expected: tuple[str, str, str]) -> None:
    _expect(reason("debian", "ours", said, "", held), expected)


@pytest.mark.parametrize(
    ("updated", "expected"),
    [
        (
            "E: Release file for file:/srv/old/Release is expired (invalid since 1062d 16h). Updates will not be applied.",
            ("download", "Release file for file:/srv/old/Release is expired (invalid since 1062d 16h)", "timedatectl"),
        ),
        (
            "E: Release file for file:/srv/old/Release is not valid yet (invalid for another 2d). Updates will not.",
            ("download", "is not valid yet (invalid for another 2d)", "timedatectl"),
        ),
        (
            "W: GPG error: file:/srv InRelease: The key is not available: NO_PUBKEY BC19\nE: The repository is not signed.",
            ("download", "NO_PUBKEY BC19", "current key"),
        ),
        (
            "W: Failed to fetch https://127.0.0.1/InRelease  Certificate verification failed: The certificate is NOT trusted. "
            "The certificate chain uses not yet valid certificate.  Could not handshake: Error in the certificate verification.",
            ("download", "The certificate chain uses not yet valid certificate", "clock is wrong: `timedatectl`"),
        ),
        (
            "W: Failed to fetch http://mirror.example.com/InRelease  Could not resolve 'mirror.example.com'",
            ("download", "http://mirror.example.com/InRelease Could not resolve 'mirror.example.com'", ""),
        ),
    ],
)
def test_what_is_wrong_with_a_repository_explains_why_it_has_no_package(updated: str, expected: tuple[str, str, str]) -> None:
    _expect(reason("debian", "ours", _MISSING, updated), expected)


@pytest.mark.parametrize(
    ("family", "said", "updated", "is_of_clock"),
    [
        ("debian", _MISSING, "E: Release file for http://m/Release is not valid yet (invalid for another 2d). Updates", True),
        ("debian", _MISSING, "W: Failed to fetch https://m/InRelease  Certificate chain uses expired certificate.", True),
        ("rhel", "  - Curl error (60): SSL peer certificate: certificate is not yet valid [https://m/repomd.xml]", "", True),
        ("debian", _MISSING, "W: Failed to fetch http://m/InRelease  Could not resolve 'm'", False),
        ("debian", _MISSING, "", False),
    ],
)
def test_before_an_installation_too_a_wrong_clock_is_named(family: str, said: str, updated: str, is_of_clock: bool) -> None:
    why = install._why(family, ["ours"], said, updated)
    assert ("clock is wrong: `timedatectl`" in why) is is_of_clock, why


def test_a_broken_repository_is_not_the_reason_of_what_dpkg_did_not_do() -> None:
    found = reason("debian", "ours", _STATOVERRIDE, "E: Failed to fetch http://127.0.0.1:9/Packages  Connection refused")
    assert "statoverride" in found.what


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            "All matches were filtered out by exclude filtering for argument: ours\nError: Unable to find a match: ours\n",
            ("packages", "filtered out by exclude filtering for argument: ours", "dnf versionlock list; exclude= in"),
        ),
        (_HELPER, ("packages", "package ours-helper-1.20.0-1.x86_64 is filtered out", "dnf versionlock list")),
        (
            "Error: Transaction test error:\n  installing package ours-1.x86_64 needs 2 more inodes on the /usr filesystem\n",
            ("disk-full", "needs 2 more inodes on the /usr", "no inode is left (df -i)"),
        ),
        (
            "Disk Requirements:\n   At least 1MB more space needed on the / filesystem.\n",
            ("disk-full", "At least 1MB more space needed on the /", "df -h"),
        ),
        (
            "RPM: error: can't create transaction lock on /var/lib/rpm/.rpm.lock (Resource temporarily unavailable)\n"
            "Error: Could not run transaction.\n",
            ("locked", "transaction lock on /var/lib/rpm/.rpm.lock", "another rpm is at work"),
        ),
        (
            'Error: There are no enabled repositories in "/etc/yum.repos.d".\n',
            ("download", "There are no enabled repositories", "subscription-manager register"),
        ),
        (
            "error: failed to open dir ours of /usr/share/doc/ours/: Operation not permitted\nError: Transaction failed\n",
            ("packages", "/usr/share/doc/ours/: Operation not permitted", ""),
        ),
        (
            "You have enabled checking of packages via GPG keys.\n\nProblem repository: [site]\ngpgkey: \nusername: \n",
            ("packages", "Problem repository: [site]", "set gpgkey= in its file in /etc/yum.repos.d"),
        ),
        ("Error: Unable to find a match: ours\n", ("download", "Unable to find a match: ours", "dnf list ours")),
    ],
)
def test_dnf_s_reason_and_what_to_do(said: str, expected: tuple[str, str, str]) -> None:
    _expect(reason("rhel", "ours", said), expected)


def test_a_repository_s_login_is_in_no_message() -> None:
    """dnf prints all settings of a repository that has no key."""
    said = "Curl error (22): 403 for https://ops:hunter2@mirror.example.com/x\nusername: ops\npassword: hunter2\n"
    failure = package_failure.of("rhel", "ours", lambda file: said if file in ("attempt", "stderr") else "")
    assert "hunter2" not in f"{failure.message} {failure.log}" and "https://mirror.example.com/x" in failure.message


def _expect(found: Reason, expected: tuple[str, str, str]) -> None:
    code, what, fix = expected
    assert found.code == code and what in found.what and fix in found.fix, found


def test_what_a_hook_prints_without_end_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction_shared, "MOST_BYTES", 100_000)
    transaction = transaction_shared.Transaction(str(tmp_path))
    line = "x" * 9_999
    lines = f"echo the first line; for n in 1 2 3 4 5 6; do for m in 1 2 3 4 5; do echo {line}; done; sleep 1; done; exit 7"
    assert transaction.run("sh", "-c", lines) == 7
    assert transaction.read("log").startswith("the first line\n") and len(transaction.read("log")) < 200_000
