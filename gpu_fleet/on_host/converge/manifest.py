"""The manifest of a bundle; README.md has its format. An empty field is `-` there."""

from __future__ import annotations

from typing import NamedTuple

from .errors import Failure
from .programs import read

FORMAT = "1"


class User(NamedTuple):
    name: str
    home: str
    groups: tuple[str, ...]


class Directory(NamedTuple):
    manager: str
    path: str
    mode: int
    owner: str
    group: str
    contents: str  # shared, placed or runtime


class File(NamedTuple):
    manager: str
    path: str
    mode: int
    owner: str
    group: str
    sha256: str


class Download(NamedTuple):
    path: str
    mode: int
    arch: str
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
        self.probes: list[tuple[str, bool]] = []  # path, fatal
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

    def add(self, kind: str, fields: list[str]) -> None:
        values = ["" if field == "-" else field for field in fields]
        if kind == "when":
            self.when.append((values[0], tuple(values[1].split(","))))
        elif kind == "probe":
            self.probes.append((values[0], values[1] == "fatal"))
        elif kind == "package":
            self.packages.append((values[0], values[1]))
        elif kind == "keep":
            self.keep.append(values[0])
        elif kind == "user":
            self.users.append(User(values[0], values[1], tuple(values[2].split(",")) if values[2] else ()))
        elif kind == "dir":
            self.directories.append(Directory(values[0], values[1], int(values[2], 8), *values[3:6]))
        elif kind == "file":
            self.files.append(File(values[0], values[1], int(values[2], 8), *values[3:6]))
        elif kind == "download":
            self.downloads.append(Download(values[0], int(values[1], 8), *values[2:6]))
        elif kind == "secret":
            self.secrets.append(values[0])
        elif kind == "unit":
            self.units.append(Unit(values[0], values[1]))
        elif kind == "restart":
            self.restart.append((values[0], values[1]))
        elif kind == "reload":
            self.reload.append((values[0], values[1]))
        elif kind == "check":
            self.checks.append(Check(values[0], int(values[1]), values[2], int(values[3] or 0), values[4]))


def read_manifest(path: str) -> dict[str, Part]:
    """By name, in the order of the bundle."""
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
                    part.add(kind, fields)
        except (ValueError, IndexError, TypeError):
            parts = {}
    if not parts:
        raise Failure(
            "damaged",
            f"{path} is of another version than the program beside it, which reads format {FORMAT}; nothing was done. Make the "
            f"bundle again from one checkout: `make up`, or a new publication for hosts in pull mode",
        )
    return parts
