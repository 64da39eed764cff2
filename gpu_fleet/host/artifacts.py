"""Where hosts get each program from, according to the stack's `artifacts` section. Pure, except for reading a directory's index.

A directory of artifacts (`source: controller`) holds one file per program and architecture, named by its sha256, and
SHA256SUMS, which names them: `<sha256>  <program>-<version>.linux-<arch>`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from gpu_fleet.host.part import Source
from gpu_fleet.toolchain.versions import ARCHITECTURES, UNPINNED, Release, image, release

INDEX = "SHA256SUMS"
DCGM_IMAGE = "dcgm-exporter"
SIMULATED = "+simulated"  # suffix of the version of a program that is not a release, in a directory of the lab
_LINE = re.compile(r"(?P<sha256>[0-9a-f]{64})  (?P<what>[^\s/]+-[^\s/]+)\.linux-(?P<arch>\w+)")


class ArtifactsError(ValueError):
    """A program is not available as the stack file requires; the text has the reason and the fix."""


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """The upstream releases, verified by the checksums in versions.yaml. `mirror`: a server with the same paths, or empty."""

    mirror: str = ""

    def sources(self, programs: Iterable[str]) -> dict[str, dict[str, Source]]:
        """Program -> architecture -> source. Raises ArtifactsError naming every program without a pinned checksum."""
        found = {name: _sources(release(name)) for name in programs}
        if unpinned := [f"{name} {release(name).version}" for name, sources in found.items() if not sources]:
            raise ArtifactsError(
                f"gpu_fleet/toolchain/versions.yaml has no checksum for {', '.join(unpinned)} ({UNPINNED}), and hosts run "
                f"nothing unverified. Run `make pin` on a machine that can download them and review the diff, or set "
                "`gpu-fleet:artifacts: {source: controller, directory: build/artifacts}` and run `make artifacts`."
            )
        return {
            name: {arch: replace(source, url=mirrored(source.url, self.mirror)) for arch, source in sources.items()}
            for name, sources in found.items()
        }


def _sources(of: Release) -> dict[str, Source]:
    """By architecture: only files whose checksum is pinned."""
    return {
        arch: Source(url=file.url, sha256=file.sha256, member=file.member)
        for arch, file in of.files.items()
        if file.sha256 is not None
    }


def mirrored(url: str, mirror: str) -> str:
    """The same path on a mirror; unchanged without one."""
    return mirror.rstrip("/") + urlsplit(url).path if mirror else url


def from_directory(directory: Path, programs: Iterable[str]) -> dict[str, dict[str, Source]]:
    """The directory's files for these programs. Raises ArtifactsError when it has none for one of them."""
    index = _index(directory)
    wanted = {name: f"{name}-{release(name).version}" for name in programs}
    if missing := [what for what in wanted.values() if what not in index]:
        raise ArtifactsError(
            f"{directory / INDEX} lists no {', no '.join(missing)}: add the files, or set "
            "`gpu-fleet:artifacts: {source: upstream}`."
        )
    return {name: index[what] for name, what in wanted.items()}


def _index(directory: Path) -> dict[str, dict[str, Source]]:
    """`<name>-<version>` -> architecture -> the file."""
    return {what.removesuffix(SIMULATED): files for what, files in _lines(directory).items()}


def simulated_in(directory: Path) -> list[str]:
    """`<name>-<version>` of the programs that are not releases. Raises ArtifactsError."""
    return [what.removesuffix(SIMULATED) for what in _lines(directory) if what.endswith(SIMULATED)]


def _lines(directory: Path) -> dict[str, dict[str, Source]]:
    path = directory / INDEX
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise ArtifactsError(
            f"gpu-fleet:artifacts.directory: {path} cannot be read ({error.strerror}). It lists the programs, a line each: "
            "`<sha256>  <program>-<version>.linux-<amd64 or arm64>`, and each file beside it is named by its sha256."
        ) from None
    found: dict[str, dict[str, Source]] = {}
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line)
        if match is None or match["arch"] not in ARCHITECTURES:
            raise ArtifactsError(
                f"{path}, line {number}: not `<sha256>  <program>-<version>.linux-<amd64 or arm64>`: {line[:100]!r}"
            )
        found.setdefault(match["what"], {})[match["arch"]] = Source(sha256=match["sha256"])
    return found


def program_sources(
    source: str, programs: Iterable[str], *, url: str | None = None, directory: Path | None = None
) -> Mapping[str, Mapping[str, Source]]:
    """`source`, `url`, `directory`: the stack's `artifacts` section; only `controller` has a directory. Raises ArtifactsError."""
    if directory is not None:
        return from_directory(directory, programs)
    return Upstream(mirror=url or "").sources(programs)


def image_archives(source: str, *, directory: Path | None = None) -> Mapping[str, Source]:
    """dcgm-exporter's image as `docker save` wrote it, by architecture, if the directory of artifacts has it; then no host
    uses a registry. Raises ArtifactsError."""
    if source != "controller" or directory is None:
        return {}
    return _index(directory).get(f"{DCGM_IMAGE}-{image(DCGM_IMAGE).tag}", {})


def image_reference(configured: str | None, archives: Mapping[str, Source]) -> str:
    """dcgm-exporter's image as hosts pull it. `configured`: the stack's own, with a digest.

    Raises ArtifactsError when the digest is not pinned and there is no archive instead.
    """
    pinned = image(DCGM_IMAGE)
    if not configured and not pinned.digest and not archives:
        raise ArtifactsError(
            f"gpu_fleet/toolchain/versions.yaml has no digest for the image {pinned.reference} ({UNPINNED}), and hosts run "
            "nothing unverified. Run `make pin` where its registry can be reached and review the diff, name an image by its "
            "digest in gpu-fleet:dcgm.image, or put an archive of it into the directory of `artifacts: {source: controller}`."
        )
    return configured or pinned.reference
