"""Writes the checksums that makers publish into components/versions.yaml, for a person to review and commit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from components import versions
from lab.toolchain.errors import ToolchainError, Unavailable
from lab.toolchain.maker import Maker


def pin(names: Sequence[str], file: Path = versions.FILE) -> list[str]:
    """Pins every unpinned checksum of the named programs (all by default); returns a line for each.

    Raises ToolchainError with all that could not be pinned, after writing what could.
    """
    releases = versions.read_releases(file)
    if unknown := sorted(set(names) - set(releases)):
        raise ToolchainError(f"{file.name} has no {', '.join(unknown)}. It has: {', '.join(releases)}.")
    maker, text, told, failures = Maker(), file.read_text(), [], []
    for name in names or releases:
        for arch, release_file in releases[name].files.items():
            if release_file.sha256:
                continue
            try:
                sha256 = maker.published_sha256(release_file)
            except Unavailable as reason:
                failures.append(f"{name} {arch}: {reason}")
                continue
            text = _with_sha256(text, name, arch, sha256)
            told.append(f"{name} {releases[name].version} {arch}: {sha256} (from {release_file.checksums_url})")
    file.write_text(text)
    if failures:
        raise ToolchainError("\n".join([*told, *failures]))
    return told


def _with_sha256(text: str, name: str, arch: str, sha256: str) -> str:
    """Changes that one line and leaves comments and layout as they are."""
    entry = re.compile(
        rf"(^  {re.escape(name)}:\n(?:    .*\n)*?    sha256:\n(?:      .*\n)*?      {arch}: ){versions.UNPINNED}$", re.M
    )
    changed, count = entry.subn(rf"\g<1>{sha256}", text)
    if count != 1:
        raise ToolchainError(f"versions.yaml: no line programs.{name}.sha256.{arch}: {versions.UNPINNED} to change")
    return changed
