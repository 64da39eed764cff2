"""The releases this project uses, read from versions.yaml: the only place where a version or a checksum is written.

Not done here: downloading. Hosts fetch what gpu_fleet/host/artifacts.py says, the toolchain fetches for this machine.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

FILE = Path(__file__).with_name("versions.yaml")
ARCHITECTURES = ("amd64", "arm64")
UNPINNED = "unpinned"
_NAME: Final = "gpu_fleet/toolchain/versions.yaml"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_Entry = TypeVar("_Entry")


class VersionsError(SystemExit):
    """versions.yaml is no YAML, lacks an entry or has an invalid one; the text names the key and the next step. It is read on
    import, by nearly every command: whoever edits it gets this message from each, and no traceback."""


@dataclass(frozen=True, kw_only=True)
class ReleaseFile:
    """Upstream's file for one architecture.

    `sha256` is None while nobody has pinned it. `member` is the program inside the archive, `also` are members it needs
    beside it; both are empty for a bare binary. `tree` set: the whole archive is the program, without its first directory,
    and `tree` is the path of the executable in what remains. `checksums_url` is the list that upstream publishes beside it.
    """

    url: str
    sha256: str | None
    checksums_url: str
    member: str = ""
    also: tuple[str, ...] = ()
    tree: str = ""


@dataclass(frozen=True, kw_only=True)
class Release:
    """One version of one program. `files` maps amd64 and arm64 to upstream's file."""

    name: str
    version: str
    files: Mapping[str, ReleaseFile]


@dataclass(frozen=True, kw_only=True)
class Image:
    """A container image; `digest` is None while it is not pinned."""

    repository: str
    tag: str
    digest: str | None

    @property
    def reference(self) -> str:
        """What `docker pull` takes: the digest decides when it is pinned, the tag is for the reader."""
        return f"{self.repository}:{self.tag}" + (f"@{self.digest}" if self.digest else "")


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A Helm chart of a repository. `name`: what this project calls it, and its release; `chart`: as the repository does.

    `sha256`: of the archive of this version; None while it is not pinned.
    """

    name: str
    chart: str
    version: str
    repository: str
    sha256: str | None


@dataclass(frozen=True, kw_only=True)
class Repository:
    """A repository of distribution packages. `key_sha256`: of the file with its public key, `gpgkey` below the URL."""

    url: str
    key_sha256: str


def release(name: str) -> Release:
    """The release of a program, by its name in versions.yaml. Raises VersionsError for an unknown name."""
    return _section("programs", name, _releases(FILE))


def image(name: str) -> Image:
    """A container image, by its name in versions.yaml. Raises VersionsError for an unknown name."""
    return _section("images", name, _images(FILE))


def chart(name: str) -> Chart:
    """A Helm chart, by its name in versions.yaml. Raises VersionsError for an unknown name."""
    return _section("charts", name, _charts(FILE))


def images() -> Mapping[str, Image]:
    """Every container image, by its name in versions.yaml."""
    return _images(FILE)


def charts() -> Mapping[str, Chart]:
    """Every Helm chart, by its name in versions.yaml."""
    return _charts(FILE)


def repository(name: str) -> Repository:
    """A repository of packages, by its name in versions.yaml. Raises VersionsError for an unknown name."""
    return _section("repositories", name, _repositories(FILE))


def _content(file: Path) -> Any:
    try:
        # In every run: the pure Python loader takes ten times as long.
        return yaml.load(file.read_text(), Loader=yaml.CSafeLoader)
    except OSError as error:
        raise VersionsError(f"{_NAME} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise VersionsError(f"{_NAME} is not UTF-8; save the file in that encoding") from None
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise VersionsError(f"{_NAME}{line}: not valid YAML: {error.problem}") from None


def _read(file: Path, section: str, entry: Callable[[str, Any], _Entry]) -> dict[str, _Entry]:
    entries = _content(file).get(section, {})
    found = {}
    for name in entries:
        try:
            found[name] = entry(name, entries[name])
        except (KeyError, TypeError, AttributeError) as error:
            lacks = f"has no {error.args[0]}" if isinstance(error, KeyError) else "has a value of another type than the others"
            raise VersionsError(f"{_NAME}: {section}.{name} {lacks}.") from None
    return found


def read_releases(file: Path) -> dict[str, Release]:
    """Every program of a versions file. Raises VersionsError with the key of the first error."""
    return _read(file, "programs", _release)


@cache
def _images(file: Path) -> dict[str, Image]:
    return read_images(file)


@cache
def _releases(file: Path) -> dict[str, Release]:
    return read_releases(file)


def read_images(file: Path) -> dict[str, Image]:
    """Every container image of a versions file."""
    return _read(file, "images", _image)


def _image(_: str, entry: Mapping[str, Any]) -> Image:
    digest = None if entry["digest"] == UNPINNED else entry["digest"]
    return Image(repository=entry["repository"], tag=entry["tag"], digest=digest)


@cache
def _charts(file: Path) -> dict[str, Chart]:
    return read_charts(file)


def read_charts(file: Path) -> dict[str, Chart]:
    """Every Helm chart of a versions file. Raises VersionsError with the key of the first error."""
    return _read(file, "charts", _chart)


def _chart(name: str, entry: Mapping[str, Any]) -> Chart:
    return Chart(
        name=name,
        chart=entry["chart"],
        version=str(entry["version"]),
        repository=entry["repository"],
        sha256=_sha256(f"charts.{name}.sha256", str(entry["sha256"])),
    )


@cache
def _repositories(file: Path) -> dict[str, Repository]:
    return _read(file, "repositories", lambda _, entry: Repository(url=entry["url"], key_sha256=entry["key_sha256"]))


def _section(section: str, name: str, entries: Mapping[str, _Entry]) -> _Entry:
    if name not in entries:
        raise VersionsError(f"{_NAME} has no {section}.{name}; it has: {', '.join(sorted(entries))}.")
    return entries[name]


def _release(name: str, entry: Mapping[str, Any]) -> Release:
    version = str(entry["version"])
    return Release(name=name, version=version, files={arch: _file(name, entry, version, arch) for arch in ARCHITECTURES})


def _file(name: str, entry: Mapping[str, Any], version: str, arch: str) -> ReleaseFile:
    def fill(pattern: str) -> str:
        return pattern.format(version=version, arch=entry.get("arch", {}).get(arch, arch))

    return ReleaseFile(
        url=fill(entry["url"]),
        sha256=_sha256(f"programs.{name}.sha256.{arch}", str(entry["sha256"][arch])),
        checksums_url=fill(entry["checksums"]),
        member=fill(entry.get("member", "")),
        also=tuple(fill(member) for member in entry.get("also", ())),
        tree=fill(entry.get("tree", "")),
    )


def _sha256(key: str, value: str) -> str | None:
    if value == UNPINNED:
        return None
    if not _SHA256.fullmatch(value):
        raise VersionsError(f"{_NAME}: {key} is {value!r}; it must be 64 hexadecimal digits or {UNPINNED!r}.")
    return value
