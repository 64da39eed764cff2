"""The secret gpu-fleet:sudoPasswords: one sudo password per host, as YAML or JSON.

Messages number its entries and show nothing of them: somebody may have written password and host the wrong way round.
"""

from __future__ import annotations

from collections.abc import Set

import yaml

from gpu_fleet.stackfile.naming import PROJECT
from gpu_fleet.stackfile.patterns import PATTERN_EXPECTED, PatternError, expand
from gpu_fleet.stackfile.problems import ConfigErrors, Problem

KEY = f"{PROJECT}:sudoPasswords"
_EXPECTED = "YAML such as `gpu-[001:016]: PASSWORD`, one line per host or pattern"
_FIX = f"`pulumi config set --secret {KEY} <FILE`"


def sudo_passwords(text: str) -> dict[str, str]:
    """Host name to password; a host is named once. Raises ConfigErrors with all problems."""
    try:
        entries = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark else ""  # the message itself would quote the secret
        raise ConfigErrors([Problem(KEY, f"is not YAML{where}", _EXPECTED, _FIX)]) from None
    if not isinstance(entries, dict) or not entries:
        raise ConfigErrors([Problem(KEY, "is not a mapping", _EXPECTED, _FIX)])
    found: dict[str, str] = {}
    problems = []
    for number, (pattern, password) in enumerate(entries.items(), 1):
        try:
            names = expand(pattern) if isinstance(pattern, str) else None
        except PatternError:
            problems.append(Problem(KEY, f"entry {number} is a pattern that cannot be expanded", PATTERN_EXPECTED, _FIX))
            continue
        if names is None or not isinstance(password, str) or not password or "\n" in password:
            what = f"entry {number} is not a host with a password in one line"
            problems.append(Problem(KEY, what, _EXPECTED, "write a password of digits in quotes; " + _FIX))
            continue
        if not found.keys().isdisjoint(names):
            problems.append(Problem(KEY, f"entry {number} names a host of an earlier entry", "each host once", _FIX))
        found |= dict.fromkeys(names, password)
    if problems:
        raise ConfigErrors(problems)
    return found


def warning_of_unknown(found: Set[str], hosts: Set[str]) -> str | None:
    """For passwords of hosts that the stack file does not list. They are needed while such a host is being removed."""
    count = len(found - hosts)
    if not count:
        return None
    return f"{KEY}: {count} of its {len(found)} hosts are not in the stack file; a password is needed until the host is removed"
