"""What dnf or yum is about to do, from the tables that it prints."""

from __future__ import annotations

import re
from typing import Sequence


def installs(text: str, native: str) -> Sequence[str]:
    """The names below Installing, Installing dependencies and Installing weak dependencies, with an architecture that is not the
    host's."""
    rows = [row for row in _rows(text) if re.match("Installing.*:$", row[0])]
    return sorted({name if arch in (native, "noarch", "") else f"{name}.{arch}" for _, name, arch in rows})


def replaces(text: str) -> Sequence[str]:
    """The names below Upgrading, Downgrading, Replacing and Removing."""
    return [name for title, name, _ in _rows(text) if title.startswith(("Upgrading", "Downgrading", "Replacing", "Removing"))]


def _rows(text: str) -> Sequence[Sequence[str]]:
    """Title, name and architecture. A name too long for its column is on a line of its own."""
    title, rows = "", []
    for line in text.split("\n"):
        words = line.split()
        if words and not line.startswith(" "):
            title = line
        elif re.match(" [^ ]", line):
            rows.append([title, *words[:2], *[""] * (2 - len(words))])
        elif words and rows and rows[-1][0] == title and not rows[-1][2]:
            rows[-1][2] = words[0]
    return rows
