"""Writes the checksums of makers' files into components/versions.yaml, for a person to review and commit."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from components import versions
from lab.toolchain.errors import ToolchainError, Unavailable
from lab.toolchain.maker import Maker
from lab.toolchain.progress import Progress


def pin(names: Sequence[str], progress: Progress, file: Path = versions.FILE) -> None:
    """Pins every unpinned checksum of the named programs (all by default), telling where each comes from.

    Raises ToolchainError with all that could not be pinned, after writing what could.
    """
    releases = versions.read_releases(file)
    if unknown := sorted(set(names) - set(releases)):
        raise ToolchainError(f"{file.name} has no {', '.join(unknown)}. It has: {', '.join(releases)}.")
    maker, text, failures = Maker(), file.read_text(), []
    with tempfile.TemporaryDirectory() as scratch:
        for name in names or releases:
            for arch, release_file in releases[name].files.items():
                if release_file.sha256:
                    continue
                title = f"{name} {arch}"
                try:
                    with progress.step(title, "asking its maker") as step:
                        sha256, source = maker.learn_sha256(release_file, Path(scratch), step)
                except Unavailable as reason:
                    failures.append(f"{title}: {reason}")
                    continue
                text = _with_sha256(text, name, arch, sha256)
                progress.line(title, f"{sha256} ({source})")
    if text != file.read_text():
        file.write_text(text)
        progress.say(f"Review the change of {file.name} and commit it.")
    if failures:
        raise ToolchainError("\n".join(failures))


def _with_sha256(text: str, name: str, arch: str, sha256: str) -> str:
    """Changes that one line and leaves comments and layout as they are."""
    entry = re.compile(
        rf"(^  {re.escape(name)}:\n(?:    .*\n)*?    sha256:\n(?:      .*\n)*?      {arch}: ){versions.UNPINNED}$", re.M
    )
    changed, count = entry.subn(rf"\g<1>{sha256}", text)
    if count != 1:
        raise ToolchainError(f"versions.yaml: no line programs.{name}.sha256.{arch}: {versions.UNPINNED} to change")
    return changed
