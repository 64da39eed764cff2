"""What a host should have: its parts, and everything that they place."""

from __future__ import annotations

import os
from typing import NamedTuple

from .disk import sha256
from .host import ENV_FILE, GROUP, SECRETS_DIRECTORY, Host, secret_group
from .manifest import Part
from .records import Placed, Record
from .settings import ONE, Settings


class Value(NamedTuple):
    """A file that is made on this host: the environment file or a secret. `sha256` is what it should have."""

    path: str
    mode: int
    group: str
    sha256: str
    content: bytes


class Wanted:
    """`causes`: digest of everything on this host whose change restarts or reloads a unit. `things`: KIND and KEY of everything
    that is placed, `paths`: those that are paths. `groups`: ours that this host needs."""

    def __init__(self, host: Host, parts: dict[str, Part], settings: Settings, placed: Placed, manager: str) -> None:
        self.parts = [part for part in parts.values() if settings.allows(part)]
        self.names = {part.name for part in self.parts}
        self.manager = manager
        self._host = host
        read = {cause for part in self.parts for _, cause in (*part.restart, *part.reload) if cause.startswith(ONE)}
        self.causes: dict[str, str] = {name: sha256(settings.cause(name)) for name in ("settings", "identity", *read)}
        self.things: set[tuple[str, str]] = set()
        self._unit_types: dict[str, str] = {}
        self.paths: dict[str, None] = {}
        self.groups: list[str] = []
        self.values = self._values(settings, placed)
        for group in self.groups:
            self.things.add(("group", group))
        for value in self.values:
            self._place("file", value.path)
        for part in self.parts:
            self._add(part)

    def _values(self, settings: Settings, placed: Placed) -> list[Value]:
        """One secret that the stack does not set is an empty file, so that a service can always refer to it; without an envelope
        the secrets in place are used."""
        mode, group = (0o640, GROUP) if self._host.owners else (0o600, "root")
        content = settings.environment_file
        values = [Value(ENV_FILE, mode, group, sha256(content), content)]
        names = sorted({name for part in self.parts for name in part.secrets})
        if self._host.owners:
            self.groups = [GROUP, *(secret_group(name) for name in names)]
        for name in names:
            path = f"{SECRETS_DIRECTORY}/{name}"
            source = f"{self._host.envelope}/secrets/{name}" if self._host.envelope else self._host.at(path)
            content = _content(source)
            digest = self.causes[f"secrets/{name}"] = sha256(content)
            record = placed.get("file", path)
            if not self._host.envelope and record:  # then only the record has the secret's digest
                digest = record.a
            values.append(Value(path, mode, secret_group(name) if self._host.owners else "root", digest, content))
        return values

    def is_of_manager(self, manager: str) -> bool:
        return manager in ("any", self.manager)

    def _add(self, part: Part) -> None:
        for file in part.files:
            if self.is_of_manager(file.manager):
                self._place("file", file.path)
                self.causes[file.path] = file.sha256
        for download in part.downloads:
            if download.arch == self._host.arch:
                self._place("bin", download.path)
                self.causes[download.path] = download.source
        for directory in part.directories:
            if self.is_of_manager(directory.manager):
                self._place("dir", directory.path)
        self.things.update(("user", user.name) for user in part.users)
        self.things.update(("unit", unit.name) for unit in part.units)
        self._unit_types.update((unit.name, unit.type) for unit in part.units)

    def _place(self, kind: str, path: str) -> None:
        self.things.add((kind, path))
        self.paths[path] = None
        parent = os.path.dirname(path)
        while parent != "/":
            self.things.add(("dir", parent))
            self.paths[parent] = None
            parent = os.path.dirname(parent)

    def is_obsolete(self, record: Record) -> bool:
        """Packages stay until the host is removed. Shared directories are left to the sweep."""
        if record.kind in ("with", "format", "package") or (record.kind == "dir" and record.a != "runtime"):
            return False
        if record.name not in self.things:
            return True
        return record.kind == "unit" and (record.b != self.manager or self._was_timer(record))

    def _was_timer(self, record: Record) -> bool:
        """Or the other way round. Supervisor has no timers: to it both are one program."""
        return self.manager == "systemd" and record.a != self._unit_types[record.key]

    def needs_place_of(self, record: Record) -> bool:
        """Is something wanted at its path, or at the path of its directory?"""
        path = record.key
        while path not in ("", "/"):
            if ("file", path) in self.things or ("bin", path) in self.things:
                return True
            path = os.path.dirname(path)
        return False

    @property
    def has_units(self) -> bool:
        return any(part.units for part in self.parts)


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
