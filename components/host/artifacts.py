"""Where hosts get each program from, as the stack's `artifacts` section says. Pure but for reading a directory's index.

A directory of artifacts (`source: controller`) holds one file per program and architecture, named by its sha256, and
SHA256SUMS, which tells them apart: `<sha256>  <program>-<version>.linux-<arch>`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from components.host.part import Source
from components.versions import ARCHITECTURES, UNPINNED, release

INDEX = "SHA256SUMS"
_LINE = re.compile(r"(?P<sha256>[0-9a-f]{64})  (?P<name>[\w-]+)-(?P<version>[^\s/-]+)\.linux-(?P<arch>\w+)")


class ArtifactsError(ValueError):
    """A program cannot be had as the stack file asks; the text says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """The makers' releases, verified by the sums in versions.yaml. `mirror`: a server that keeps their paths, or empty."""

    mirror: str = ""

    def sources(self, programs: Iterable[str]) -> dict[str, dict[str, Source]]:
        """Program -> architecture -> source. Raises ArtifactsError naming every program without a pinned sum."""
        found = {name: release(name).sources for name in programs}
        if unpinned := [f"{name} {release(name).version}" for name, sources in found.items() if not sources]:
            raise ArtifactsError(
                f"components/versions.yaml has no checksum for {', '.join(unpinned)} ({UNPINNED}), and hosts run nothing "
                f"unverified. Run `make pin` where the makers can be reached and review the diff, "
                "or set `gpu-fleet:artifacts: {source: controller}`."
            )
        return {name: {arch: self._moved(source) for arch, source in sources.items()} for name, sources in found.items()}

    def _moved(self, source: Source) -> Source:
        return replace(source, url=self.mirror.rstrip("/") + urlsplit(source.url).path) if self.mirror else source


def from_directory(directory: Path, programs: Iterable[str]) -> dict[str, dict[str, Source]]:
    """What the directory holds for these programs. Raises ArtifactsError when it lacks one altogether."""
    index = directory / INDEX
    try:
        lines = index.read_text().splitlines()
    except OSError as error:
        raise ArtifactsError(
            f"gpu-fleet:artifacts.directory: {index} cannot be read ({error.strerror}). It lists the programs, a line each: "
            "`<sha256>  <program>-<version>.linux-<amd64 or arm64>`, and each file beside it is named by its sha256."
        ) from None
    found: dict[str, dict[str, Source]] = {name: {} for name in programs}
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line)
        if match is None or match["arch"] not in ARCHITECTURES:
            raise ArtifactsError(
                f"{index}, line {number}: not `<sha256>  <program>-<version>.linux-<amd64 or arm64>`: {line[:100]!r}"
            )
        if match["name"] in found and match["version"] == release(match["name"]).version:
            found[match["name"]][match["arch"]] = Source(sha256=match["sha256"])
    if missing := [f"{name} {release(name).version}" for name, sources in found.items() if not sources]:
        raise ArtifactsError(
            f"{index} lists no {', no '.join(missing)}: add the files, or set `gpu-fleet:artifacts: {{source: upstream}}`."
        )
    return found


def program_sources(
    source: str, programs: Iterable[str], *, url: str | None = None, directory: Path | None = None
) -> Mapping[str, Mapping[str, Source]]:
    """`source`, `url`, `directory`: the stack's `artifacts` section. Raises ArtifactsError."""
    if source == "controller" and directory is not None:
        return from_directory(directory, programs)
    return Upstream(mirror=url or "").sources(programs)
