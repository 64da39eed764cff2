"""What a host should have: its parts, and everything that they place."""

from __future__ import annotations

import os
from typing import Iterator

from .disk import sha256
from .host import ENV_FILE, GROUP, SECRETS_DIRECTORY, Host, secret_group
from .manifest import File, Part
from .programs import read_or_empty
from .records import Placed, Record
from .settings import ONE, Settings, encode


class Wanted:
    """`causes`: digest of everything on this host whose change restarts or reloads a unit. `things`: KIND and KEY of everything
    that is placed, `paths`: those that are paths. `groups`: ours that this host needs. Of the part `host` are also the files that
    are made here: the environment file and the secrets."""

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
        self._mode, self._group = (0o640, GROUP) if host.owners else (0o600, "root")
        content = settings.environment_file
        self.environment_file = File(ENV_FILE, self._mode, "root", self._group, sha256(content), content)
        parts["host"].files += [self.environment_file, *self._secrets(placed)]
        self.things.update(("group", group) for group in self.groups)
        for part in self.parts:
            self._add(part)

    def _secrets(self, placed: Placed) -> Iterator[File]:
        """One that the stack does not set is an empty file, so that a service can always refer to it; without an envelope those
        in place are used."""
        names = sorted({name for part in self.parts for name in part.secrets})
        if self._host.owners:
            self.groups = [GROUP, *(secret_group(name) for name in names)]
        for name in names:
            path = f"{SECRETS_DIRECTORY}/{name}"
            source = f"{self._host.envelope}/secrets/{name}" if self._host.envelope else self._host.at(path)
            content = encode(read_or_empty(source))
            digest = self.causes[f"secrets/{name}"] = sha256(content)
            record = placed.get("file", path)
            if not self._host.envelope and record:  # then only the record has the secret's digest
                digest = record.a
            yield File(path, self._mode, "root", secret_group(name) if self._host.owners else "root", digest, content)

    def _add(self, part: Part) -> None:
        for file in part.files:
            self._place("file", file.path)
            self.causes[file.path] = file.sha256
        for download in part.downloads:
            self._place("bin", download.path)
            self.causes[download.path] = download.source
        for directory in part.directories:
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
        # A timer that was a service, or the other way round. To supervisord, which has no timers, both are one program.
        is_other_type = record.kind == "unit" and self.manager == "systemd" and record.a != self._unit_types[record.key]
        return is_other_type or (record.kind == "unit" and record.b != self.manager)

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
