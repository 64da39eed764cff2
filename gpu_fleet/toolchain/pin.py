"""Writes the checksums of upstream's files and of charts, and the digests of images, into gpu_fleet/toolchain/versions.yaml, for
review."""

from __future__ import annotations

import datetime
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from gpu_fleet.toolchain import versions
from gpu_fleet.toolchain.errors import ToolchainError, Unavailable
from gpu_fleet.toolchain.progress import Progress, Step
from gpu_fleet.toolchain.registry import digest_of
from gpu_fleet.toolchain.upstream import Upstream

# The line to change, its title, and a function that returns the value and its source.
_Pin = tuple[re.Pattern[str], str, Callable[[Step], tuple[str, str]]]


def reset_since(commit: str, progress: Progress, file: Path = versions.FILE) -> None:
    """Unpins what got another version since that commit and kept its checksum, as Renovate leaves it. Raises ToolchainError."""
    command = ["git", "show", f"{commit}:./{file.name}"]
    done = subprocess.run(command, cwd=file.parent, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ToolchainError(f"git cannot show {file.name} of {commit}: {done.stderr.strip()}")
    text, reset = reset_changed(done.stdout, file.read_text())
    if reset:
        file.write_text(text)
        progress.say(f"Another version since {commit}: {', '.join(reset)}.")


def pin(names: Sequence[str], progress: Progress, file: Path = versions.FILE) -> None:
    """Pins everything unpinned of the named programs, images and charts (all by default). Beside each value it writes its source.

    Raises ToolchainError with all that could not be pinned, after writing what could.
    """
    releases, images, charts = versions.read_releases(file), versions.read_images(file), versions.read_charts(file)
    known = dict.fromkeys([*releases, *images, *charts])
    if unknown := sorted(set(names) - set(known)):
        raise ToolchainError(f"{file.name} has no {', '.join(unknown)}. It has: {', '.join(known)}.")
    text, failures, upstream = file.read_text(), [], Upstream()
    today = datetime.datetime.now(datetime.UTC).date()
    with tempfile.TemporaryDirectory() as scratch:
        unpinned = [*_programs(releases, Path(scratch), upstream), *_images(images), *_charts(charts, upstream)]
        wanted = [pin for name, pin in unpinned if not names or name in names]
        for line, title, learn in wanted:
            try:
                with progress.step(title, "fetching its checksum") as step:
                    value, source = learn(step)
            except Unavailable as reason:
                failures.append(f"{title}: {reason}")
                continue
            text = _with_value(text, line, f"{value}  # {source}, {today}")
            progress.line(title, f"{value} ({source})")
    if text != file.read_text():
        file.write_text(text)
        progress.say(f"Review the change of {file.name} and commit it.")
    if failures:
        raise ToolchainError(
            "\n".join(failures)
            + f"\n{len(failures)} of {len(wanted)} could not be pinned. `make pin` fetches each from the site of "
            f"its publisher: run it on a machine that can reach them, and commit {file.name}."
        )


def _programs(releases: dict[str, versions.Release], scratch: Path, upstream: Upstream) -> Iterator[tuple[str, _Pin]]:
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


def _charts(charts: dict[str, versions.Chart], upstream: Upstream) -> Iterator[tuple[str, _Pin]]:
    for name, chart in charts.items():
        if not chart.sha256:
            line = rf"(^  {re.escape(name)}:\n    chart: .*\n(?:    .*\n)*?    sha256: ){versions.UNPINNED}$"

            def learn(_: Step, of: versions.Chart = chart) -> tuple[str, str]:
                return upstream.learn_chart_sha256(of)

            yield name, (re.compile(line, re.M), f"chart {name}", learn)


def reset_changed(old: str, new: str) -> tuple[str, list[str]]:
    """`new` with the checksums unpinned of all whose version changed since `old` and whose checksums did not; and their names."""
    before, after = yaml.safe_load(old), yaml.safe_load(new)
    text, reset = new, []
    for section, checksum in (("programs", "sha256"), ("images", "digest"), ("charts", "sha256")):
        for name, entry in (after.get(section) or {}).items():
            was = (before.get(section) or {}).get(name)
            if (
                was
                and was.get(checksum) == entry[checksum]
                and _what(was) != _what(entry)
                and "unpinned" not in str(entry[checksum])
            ):
                text = _unpinned(text, section, name)
                reset.append(name)
    return text, reset


def _what(entry: dict[str, Any]) -> list[object]:
    return [entry.get(key) for key in ("version", "tag", "url", "repository")]


def _unpinned(text: str, section: str, name: str) -> str:
    """Comments above the sums of a program are about where these came from."""
    start, end = _span(text, rf"^{section}:\n", r"^\S")
    at, to = _span(text[start:end], rf"^  {re.escape(name)}:\n", r"^  \S")
    entry = text[start + at : start + to]
    entry = re.sub(r"(?m)(^    #.*\n)+(?=    sha256:\n)", "", entry)
    entry = re.sub(r"(?m)^((?:    digest|    sha256|      amd64|      arm64): )[^\s{].*$", rf"\g<1>{versions.UNPINNED}", entry)
    return text[: start + at] + entry + text[start + to :]


def _span(text: str, first: str, after: str) -> tuple[int, int]:
    begin = re.search(first, text, re.M)
    assert begin, f"versions.yaml: no {first!r}"
    end = re.compile(after, re.M).search(text, begin.end())
    return begin.end(), end.start() if end else len(text)


def _with_value(text: str, line: re.Pattern[str], value: str) -> str:
    """Changes that one line and leaves comments and layout as they are."""
    changed, count = line.subn(rf"\g<1>{value}", text)
    if count != 1:
        raise ToolchainError(f"versions.yaml: no line like {line.pattern!r} to change")
    return changed
