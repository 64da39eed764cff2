"""The manifest of a bundle; README.md has its format. An empty field is `-` there. What it has for the other service manager, or
for other processors, is left out here."""

from __future__ import annotations

from typing import NamedTuple

from .disk import Content
from .errors import Failure
from .programs import read

FORMAT = "1"


class User(NamedTuple):
    name: str
    home: str
    groups: tuple[str, ...]


class Directory(NamedTuple):
    path: str
    mode: int
    owner: str
    group: str
    contents: str  # shared, placed or runtime


class File(NamedTuple):
    path: str
    mode: int
    owner: str
    group: str
    sha256: str
    content: Content


class Download(NamedTuple):
    path: str
    mode: int
    sha256: str
    member: str
    url: str  # empty: the controller sends it

    @property
    def source(self) -> str:
        """As the records have it."""
        return f"{self.sha256}:{self.member or '-'}"


class Unit(NamedTuple):
    name: str
    type: str  # service or timer


class Check(NamedTuple):
    kind: str  # http, file or port
    within_s: int
    what: str
    fresh_s: int
    contains: str


class Part:
    def __init__(self, name: str) -> None:
        self.name = name
        self.when: list[tuple[str, tuple[str, ...]]] = []
        self.probes: list[tuple[str, bool]] = []  # module, fatal
        self.packages: list[tuple[str, str]] = []  # family, name
        self.keep: list[str] = []
        self.users: list[User] = []
        self.directories: list[Directory] = []
        self.files: list[File] = []
        self.downloads: list[Download] = []
        self.secrets: list[str] = []
        self.units: list[Unit] = []
        self.restart: list[tuple[str, str]] = []  # unit, cause
        self.reload: list[tuple[str, str]] = []
        self.checks: list[Check] = []

    def add(self, kind: str, fields: list[str], bundle: str, manager: str, arch: str) -> None:
        first, *rest = ["" if field == "-" else field for field in fields]
        is_for_us = first in ("any", manager)
        if kind in ("keep", "secret"):
            (self.keep if kind == "keep" else self.secrets).append(first)
        elif kind in ("package", "restart", "reload"):
            {"package": self.packages, "restart": self.restart, "reload": self.reload}[kind].append((first, rest[0]))
        elif kind == "when":
            self.when.append((first, tuple(rest[0].split(","))))
        elif kind == "probe":
            self.probes.append((first, rest[0] == "fatal"))
        elif kind == "user":
            self.users.append(User(first, rest[0], tuple(rest[1].split(",")) if rest[1] else ()))
        elif kind == "dir" and is_for_us:
            self.directories.append(Directory(rest[0], int(rest[1], 8), *rest[2:5]))
        elif kind == "file" and is_for_us:
            owner, group, digest = rest[2:5]
            self.files.append(File(rest[0], int(rest[1], 8), owner, group, digest, f"{bundle}/files{rest[0]}"))
        elif kind == "download" and rest[1] == arch:
            self.downloads.append(Download(first, int(rest[0], 8), *rest[2:5]))
        elif kind == "unit":
            self.units.append(Unit(first, rest[0]))
        elif kind == "check":
            self.checks.append(Check(first, int(rest[0]), rest[1], int(rest[2] or 0), rest[3]))


def read_manifest(bundle: str, manager: str, arch: str) -> dict[str, Part]:
    """By name, in the order of the bundle."""
    path = f"{bundle}/manifest"
    try:
        lines = read(path).splitlines()
    except OSError as error:
        raise Failure.of(f"cannot read {path}", error) from error
    parts: dict[str, Part] = {}
    part = Part("")
    if lines[:1] == [f"format\t{FORMAT}"]:
        try:
            for line in lines[1:]:
                kind, *fields = line.split("\t")
                if kind == "part":
                    part = parts.setdefault(fields[0], Part(fields[0]))
                elif kind != "format":
                    part.add(kind, fields, bundle, manager, arch)
        except (ValueError, IndexError, TypeError):
            parts = {}
    if not parts:
        raise Failure(
            "damaged",
            f"{path} is of another version than the program beside it, which reads format {FORMAT}; nothing was done. Make the "
            f"bundle again from one checkout: `make up`, or a new publication for hosts in pull mode",
        )
    return parts
