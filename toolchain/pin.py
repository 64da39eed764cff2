"""Writes the checksums of upstream's files, and the digests of images, into toolchain/versions.yaml, for review."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from toolchain import versions
from toolchain.errors import ToolchainError, Unavailable
from toolchain.progress import Progress, Step
from toolchain.registry import digest_of
from toolchain.upstream import Upstream

# The line to change, its title, and a function that returns the value and its source.
_Pin = tuple[re.Pattern[str], str, Callable[[Step], tuple[str, str]]]


def pin(names: Sequence[str], progress: Progress, file: Path = versions.FILE) -> None:
    """Pins everything unpinned of the named programs and images (all by default), and prints the source of each value.

    Raises ToolchainError with all that could not be pinned, after writing what could.
    """
    releases, images = versions.read_releases(file), versions.read_images(file)
    if unknown := sorted(set(names) - set(releases) - set(images)):
        raise ToolchainError(f"{file.name} has no {', '.join(unknown)}. It has: {', '.join([*releases, *images])}.")
    text, failures = file.read_text(), []
    with tempfile.TemporaryDirectory() as scratch:
        wanted = [*_programs(releases, Path(scratch)), *_images(images)]
        for name, (line, title, learn) in wanted:
            if names and name not in names:
                continue
            try:
                with progress.step(title, "fetching its checksum") as step:
                    value, source = learn(step)
            except Unavailable as reason:
                failures.append(f"{title}: {reason}")
                continue
            text = _with_value(text, line, value)
            progress.line(title, f"{value} ({source})")
    if text != file.read_text():
        file.write_text(text)
        progress.say(f"Review the change of {file.name} and commit it.")
    if failures:
        raise ToolchainError("\n".join(failures))


def _programs(releases: dict[str, versions.Release], scratch: Path) -> Iterator[tuple[str, _Pin]]:
    upstream = Upstream()
    for name, release in releases.items():
        for arch, file in release.files.items():
            if not file.sha256:
                line = rf"(^  {re.escape(name)}:\n(?:    .*\n)*?    sha256:\n(?:      .*\n)*?      {arch}: ){versions.UNPINNED}$"
                yield name, (re.compile(line, re.M), f"{name} {arch}", partial(upstream.learn_sha256, file, scratch))


def _images(images: dict[str, versions.Image]) -> Iterator[tuple[str, _Pin]]:
    for name, image in images.items():
        if not image.digest:
            line = rf"(^  {re.escape(name)}:\n(?:    .*\n)*?    digest: ){versions.UNPINNED}$"

            def learn(_: Step, of: versions.Image = image) -> tuple[str, str]:
                return digest_of(of.repository, of.tag), f"{of.repository}:{of.tag} as its registry serves it now"

            yield name, (re.compile(line, re.M), f"image {name}", learn)


def _with_value(text: str, line: re.Pattern[str], value: str) -> str:
    """Changes that one line and leaves comments and layout as they are."""
    changed, count = line.subn(rf"\g<1>{value}", text)
    if count != 1:
        raise ToolchainError(f"versions.yaml: no line like {line.pattern!r} to change")
    return changed
