"""Which package managers a host has."""

from __future__ import annotations

import re


def family(os_release: str) -> str:
    """debian, rhel or unknown, of the text of /etc/os-release."""
    names = " ".join(re.findall(r"^ID(?:_LIKE)?=(.*)", os_release, re.MULTILINE)).translate({34: " ", 39: " "}).split()
    if {"debian", "ubuntu"} & {*names}:
        return "debian"
    return "rhel" if {"rhel", "fedora", "centos"} & {*names} else "unknown"
