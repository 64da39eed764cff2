"""Why apt or dnf did not install something, in one line, and what to do about it.

Their last line is seldom the reason: apt ends with `Sub-process /usr/bin/dpkg returned an error code (1)`, and calls whatever it
cannot resolve "held broken packages". Sources: texts of apt 2.6, dpkg 1.21 and dnf 4.14 on hosts of the lab, read 2026-11-28.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Sequence


class Reason(NamedTuple):
    """`code`: of converge; `fix`: may be empty."""

    code: str
    what: str
    fix: str = ""


_CLOCK = "the repository's mirror is out of date, or the host's clock is wrong: `timedatectl`"
# Of GnuTLS, then of OpenSSL.
_NOT_VALID = "uses (?:not yet valid|expired) certificate|certificate (?:is not yet valid|has expired)"
_CERTIFICATE = "the repository's certificate is out of date, or the host's clock is wrong: `timedatectl`"
OF_CLOCK = (_CLOCK, _CERTIFICATE)
# Of the repositories, when a package was not found. What could not be fetched comes first.
_REPOSITORY = (
    (rf"^[EW]: (?:Failed to fetch (.*(?:{_NOT_VALID}).*))", _CERTIFICATE),
    (rf"^ *-? *(.*Curl error .*(?:{_NOT_VALID}).*)", _CERTIFICATE),
    (r"^[EW]: (?:Failed to fetch (.*))", ""),
    (r"^E: (Release file .* is (?:expired|not valid yet) .*?)\. Updates", _CLOCK),
    (
        r"^[EW]: (?:GPG error: )?(.*(?:NO_PUBKEY|EXPKEYSIG|BADSIG|KEYEXPIRED) .*)\nE: The repository",
        "install the repository's current key",
    ),
    (r"^E: (The repository .* (?:is not signed|(?:does not|no longer) ha(?:ve|s) a Release file))\.", ""),
    (r"^ *-? *(.*Curl error .*)", ""),
    (r"^(?:Error: )?(Failed to download metadata .*)", ""),
)
_MORE = "`apt-get --simulate install NAME` shows more"
_MODULE = "a module hides it (dnf module list --enabled): reset that module"
_HOOK = "a hook of this host failed: grep -r Invoke /etc/apt/apt.conf.d"
_EXCLUDED = (
    "it is locked or excluded on this host (dnf versionlock list; exclude= in /etc/dnf/dnf.conf and /etc/yum.repos.d): allow "
    "it, or install NAME yourself"
)
_NO_KEY = "it checks packages (gpgcheck=1) and has no key: set gpgkey= in its file in /etc/yum.repos.d, or rpm --import KEY"
_REGISTER = "enable one (dnf repolist --all); on RHEL register the host: subscription-manager register"
_RPM_AT_WORK = "another rpm is at work (fuser -v /var/lib/rpm/.rpm.lock); wait for it, and apply again"
_SPACE = "free some space (df -h) and apply again"
_INODES = "there may be space, but no inode is left (df -i): delete files there and apply again"
_APT = (
    ("locked", r"^E: (Could not get lock .*)", "wait for it, or end it if it hangs, and apply again"),
    ("disk-full", r"^E: (You don't have enough free space in \S*?)\.?$", _SPACE),
    ("packages", r"^E: (Packages need to be removed but remove is disabled)", f"they conflict with NAME: {_MORE}"),
    ("packages", r"^E: (Problem executing scripts .*)", _HOOK),
    ("packages", r"^dpkg \(subprocess\): (unable to execute .*)", ""),
    ("packages", r"^dpkg: error processing (?:archive|package) (.*\n.*)", "`dpkg --configure -a` on the host shows more"),
    ("packages", r"^dpkg: (?:unrecoverable fatal )?error(?:, aborting)?: ?((?:\n .*|.*)(?:\n[a-z].*)*)", ""),
    ("packages", r"^E: (dpkg was interrupted, .*?)\.? ?$", ""),
    (
        "packages",
        r"^E: ((?:Malformed|Conflicting|Syntax error|Type .* not known|Unable to parse) .*)",
        "correct that file",
    ),
    (
        "packages",
        r"^E: ((?:Encountered a section|Problem with|The value .* is invalid) .*)",
        "`apt-get check` shows more",
    ),
    ("packages", r"^ (\S+ : (?:PreDepends|Depends|Conflicts|Breaks): .*)", _MORE),
)
_DNF = (
    ("locked", r"(can't create transaction lock on .* \(Resource temporarily unavailable\))", _RPM_AT_WORK),
    ("packages", r"((?:All matches were|package .* is) filtered out by exclude filtering.*)", _EXCLUDED),
    (
        "packages",
        r"((?:All matches were|package .* is) filtered out by modular filtering.*)",
        "reset that module: dnf module list",
    ),
    ("disk-full", r"(installing package .* needs .* more inodes on the .*) filesystem", _INODES),
    ("disk-full", r"((?:installing package .*|At least .*) more space(?: needed)? on the .*) filesystem", _SPACE),
    ("packages", r"^(Problem repository: .*)", _NO_KEY),
    (
        "packages",
        r"((?:Public key for|GPG check FAILED|Package \S+ is not signed|The GPG keys listed for).*)",
        "rpm --import its key",
    ),
    ("download", r"(There are no enabled repositories).*", _REGISTER),
    ("no-write", r"(.*\b(?:bootc system|ostree).*read-only.*)", "packages come with the image here"),
    ("packages", r"^error: (?:unpacking of archive failed on file )?(.*: cpio: .*|failed to .*|.*scriptlet.*failed.*)", ""),
    ("packages", r"^ *- ((?:nothing provides|cannot install|package .* (?:conflicts|obsoletes|requires)) .*)", ""),
)
_NOT_FOUND = re.compile(r"^E: (?:Unable to locate package|.*no installation candidate)|Unable to find a match", re.M)


def plain(text: str) -> str:
    """Of a terminal, which dpkg is given: lines end in two characters, and progress overwrites itself."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def reason(family: str, name: str, said: str, updated: str = "", held: Sequence[str] = ()) -> Reason:
    """`said`: all that the attempt printed; `updated`: all that fetching the package lists printed; `held`: the host's held
    packages."""
    said, updated = plain(said), plain(updated)
    blocking = [each for each in held if re.search(rf"(?<![\w.+-]){re.escape(each)}(?![\w.+-])", said)]
    if blocking and re.search(r"^E: .*[Hh]eld ", said, re.MULTILINE):
        which = " ".join(blocking)
        are = "is" if len(blocking) == 1 else "are"
        return Reason(
            "packages", f"{which} {are} held on this host", f"release it (apt-mark unhold {which}), or install {name} yourself"
        )
    for code, pattern, fix in _APT if family == "debian" else _DNF:
        found = re.search(pattern, said, re.MULTILINE)
        if found:
            return Reason(code, _one_line(found[1]), fix.replace("NAME", name))
    is_missing = _NOT_FOUND.search(said)
    for pattern, fix in _REPOSITORY:
        found = re.search(pattern, f"{said}\n{updated}" if is_missing or not said.strip() else said, re.MULTILINE)
        if found:
            return Reason("download", _one_line(found[1]), fix)
    what = _first_error(said)
    if is_missing:
        look = f"apt-cache policy {name}" if family == "debian" else f"dnf list {name}; dnf repolist"
        why = "apt's preferences exclude it, or no" if "installation candidate" in what else "no"
        return Reason("download", what, f"{why} repository of this host offers it: `{look}`")
    return Reason("download", what)


def _first_error(said: str) -> str:
    """apt's and dnf's first error explains those after it."""
    found = re.search(r"^(?:E: *|Error: *|Errors )(.*\S.*)", said, re.MULTILINE)
    lines = [line for line in said.split("\n") if line.strip()]
    return _one_line(found[1] if found else lines[-1] if lines else "")


def _one_line(text: str) -> str:
    return " ".join(text.split())
