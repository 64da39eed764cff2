"""How one part differs from the bundle. The same lines are a plan's changes, a check's drift, and what apply changes."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from .events import say
from .files import NEW
from .host import ENV_FILE, Host, has_our_name
from .manifest import Directory, Download, File, Part, Unit, User
from .records import Placed, Record
from .settings import changed_causes, changed_names
from .things import Things

OF_UNIT = re.compile(r"/etc/systemd/system/|/etc/gpu-fleet/supervisor\.d/|.*\.(service|timer)\.d/")
STARTS = ("start", "restart", "reload")
_ADOPTED = "exists without a record, to be adopted"


class Action(NamedTuple):
    """`operation`: group, package, user, dir, foreign, file, download, drop, manager, start, restart, reload or wait; `thing`:
    what it needs besides its key."""

    operation: str
    key: str
    thing: User | Directory | File | Download | Unit | None = None


class Difference:
    """`obsolete`: records of what no wanted part has any more."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.changes: list[str] = []
        self.actions: list[Action] = []
        self.obsolete: list[Record] = []
        self.definitions_change = False

    def add(self, text: str, operation: str, key: str, thing: User | Directory | File | Download | Unit | None = None) -> None:
        self.changes.append(text)
        self.actions.append(Action(operation, key, thing))
        if OF_UNIT.match(key) or "has a unit file that systemd has not read" in text:
            self.definitions_change = True

    @property
    def keys(self) -> set[str]:
        return {action.key for action in self.actions}


class Differences:
    """`changed`: keys of what this run has changed, or would, in earlier parts; `obsolete_why`: what is said of such things."""

    def __init__(self, things: Things) -> None:
        self._on = things
        self.changed: set[str] = set()
        self._overridden: set[str] = set()
        self.obsolete_why = "no longer wanted"

    def of(self, part: Part) -> Difference:
        """Raises Failure where this host does not support the part."""
        found = Difference(part)
        if part.name in self._on.packages.said:
            found.changes.append(self._on.packages.said[part.name])
        if part.name == "host":
            for group in self._on.wanted.groups:
                text = self._on.accounts.group_difference(group)
                if text:
                    found.add(f"group {group}: {text}", "group", group)
        for package in self._on.packages.missing(part):
            found.add(f"package {package}: missing", "package", package)
        regrouped = ""
        for user in part.users:
            difference = self._on.accounts.user_difference(user)
            regrouped = f"user {user.name}" if difference.regrouped else regrouped
            if difference.text:
                found.add(f"user {user.name}: {difference.text}", "user", user.name, user)
        self._directories(found)
        self._files(found)
        for download in part.downloads:
            text = self._on.downloads.difference(download)
            if text:
                found.add(f"program {download.path}: {text}", "download", download.path, download)
        self._obsolete(found)
        if part.name == "host" and self._on.wanted.has_units:
            text = self._on.services.missing([action.key for action in found.actions])
            if text:
                found.add(f"{self._on.services.name}: {text}", "manager", self._on.services.name)
        self._units(found, regrouped)
        if self._on.host.verb in ("plan", "check"):
            self._ports(found)
        if self._on.host.verb == "plan":
            self._pending(found)
        if part.checks and not found.changes:
            self._work(found)
        if self._on.host.verb != "check":
            for action in found.actions:
                if action.operation in ("dir", "file", "download"):
                    self._on.files.refuse_unwritable(action.key)
        return found

    def former(self, name: str) -> Difference:
        """Of a part that is no longer wanted: all that was placed for it."""
        found = Difference(Part(name))
        self._obsolete(found)
        return found

    def _directories(self, found: Difference) -> None:
        for directory in found.part.directories:
            text = self._on.files.directory_difference(directory)
            if text:
                found.add(f"directory {directory.path}: {text}", "dir", directory.path, directory)
            if directory.contents == "placed":
                self._foreign(found, directory.path)

    def _foreign(self, found: Difference, directory: str) -> bool:
        """Its entries that belong to no wanted part, or a drop-in directory itself that is a link: what that leads to is not ours
        to empty. Are there any?"""
        at = self._on.host.at(directory)
        try:
            paths = [f"{directory}/{name}" for name in sorted(os.listdir(at)) if not name.endswith(NEW)]
        except OSError:
            return False
        if directory.endswith(".d") and os.path.islink(at):
            paths = [directory]
        # What we placed and no longer want is not foreign; it is reported as obsolete.
        ours = {*self._on.wanted.paths, *(path for path in paths for kind in ("file", "bin") if self._on.placed.get(kind, path))}
        foreign = [path for path in paths if path not in ours]
        for path in foreign:
            if path not in found.keys:  # it may be for another unit of the part, too
                found.add(f"file {path}: foreign file in our directory", "foreign", path)
        return bool(foreign)

    def _files(self, found: Difference) -> None:
        """One that matches the bundle but has no record somebody else has placed, and we adopt it. The environment file is
        reported by the names of the settings that differ."""
        for file in found.part.files:
            text = self._on.files.file_difference(file) or ("" if self._on.placed.get("file", file.path) else _ADOPTED)
            if file.path == ENV_FILE and text:
                at = self._on.host.at(ENV_FILE)
                names = changed_names(at, self._on.settings.environment_file)
                text += f": {' '.join(names)}" if text == "content differs" and names else ""
                self.changed.update(changed_causes(at, self._on.settings))
            if text:
                found.add(f"file {file.path}: {text}", "file", file.path, file)

    def _obsolete(self, found: Difference) -> None:
        words = {"bin": "program", "dir": "directory", "unit": "service"}
        for record in self._on.placed.of(found.part.name):
            if self._on.wanted.is_obsolete(record):
                found.obsolete.append(record)
                is_type = record.kind == "unit" and record.name in self._on.wanted.things and record.b == self._on.wanted.manager
                word = record.a if is_type else words.get(record.kind, record.kind)
                found.add(f"{word} {record.key}: {self.obsolete_why}", "drop", record.key)

    def _units(self, found: Difference, regrouped: str) -> None:
        causes = self._causes(found)
        is_check = self._on.host.verb == "check"
        for unit in found.part.units:
            overridden = self._overrides(found, unit)
            text = self._on.services.difference(unit.name, unit.type)
            for override in self._on.services.overrides(unit.name, unit.type):
                said = (
                    f"is changed by {override.path} ({override.settings}), which is not ours and stays; remove it, or except "
                    "our services from it"
                )
                if is_check:
                    found.changes.append(f"service {unit.name}: {said}")
                else:
                    say(f"service {unit.name} {said}")
            # A unit that starting the manager starts has to be waited for like any other.
            if not text and self._on.services.started:
                text = "is not running"
            restart, reload = causes[unit.name]
            # A process keeps the groups that its user had when it started.
            if not is_check:
                restart = overridden or regrouped or restart
            operation = "start"
            if restart:
                operation, text = "restart", text or f"to be restarted, because {restart} changed"
            elif not text and reload:
                operation, text = "reload", f"to be reloaded, because {reload} changed"
            if text:
                found.add(f"service {unit.name}: {text}", operation, unit.name, unit)

    def _overrides(self, found: Difference, unit: Unit) -> str:
        """What others placed to change the unit: the directory that this run removes it from, also in the name of an earlier
        unit, where it is for several."""
        overridden = ""
        for directory in self._on.services.override_directories(unit.name, unit.type):
            if self._foreign(found, directory):
                self._overridden.add(directory)
            if directory in self._overridden:
                overridden = directory
        return overridden

    def _causes(self, found: Difference) -> dict[str, tuple[str | None, str | None]]:
        """By unit: the first things that are a reason to restart and to reload it. Something is a reason that changed since the
        unit was last started with it, according to the records; or that this run changes, except in a check, which has already
        reported that."""
        changing = set() if self._on.host.verb == "check" else self.changed | found.keys

        def first(pairs: list[tuple[str, str]], unit: str) -> str | None:
            return next((cause for name, cause in pairs if name == unit and self._is_cause(unit, cause, changing)), None)

        part = found.part
        return {unit.name: (first(part.restart, unit.name), first(part.reload, unit.name)) for unit in part.units}

    def _is_cause(self, unit: str, what: str, changing: set[str]) -> bool:
        record = self._on.placed.get("with", f"{unit}:{what}")
        digest = self._on.wanted.causes.get(what)
        if digest is None:
            return record is not None  # its part left this host
        path = f"/etc/gpu-fleet/{what}" if what.startswith("secrets/") else what
        return path in changing or record is None or record.a != digest

    def _ports(self, found: Difference) -> None:
        """The port of a service that does not run may be somebody else's, and an apply would not get it. What we have placed for
        another part may hold it, too: an apply stops that first."""
        part = found.part
        if not part.units or any(self._on.services.is_running(*unit) for unit in part.units):
            return
        placed = {record.part for record in self._on.placed.all() if record.kind == "unit"} - {part.name}
        ours = {port for name in placed & self._on.parts.keys() for port in self._on.readiness.ports_of(self._on.parts[name])}
        failure = self._on.readiness.foreign_listener(part, ours=ours)
        if failure and self._on.host.verb == "plan":
            raise failure
        if failure:
            found.changes.append(f"check: {failure.message}")

    def _pending(self, found: Difference) -> None:
        """What an apply will leave to a later one."""
        harm = self._on.services.harm(found.part.units) if found.definitions_change else ""
        if harm:
            found.changes.append(
                f"service {', '.join(unit.name for unit in found.part.units)}: runs on as it is, because `systemctl "
                f"daemon-reload` would take the GPUs from {harm}"
            )
        harm = self._on.packages.harm() if any(action.operation == "package" for action in found.actions) else ""
        if harm:
            found.changes.append(f"packages: not installed, because that would take the GPUs from {harm}")

    def _work(self, found: Difference) -> None:
        """Everything is in place and running, but does it work? Asked only then: any other difference explains a failure."""
        reason = self._on.readiness.unmet_after(found.part, 5)
        if not reason:
            return
        if not found.part.units:
            found.add(f"check: {reason}", "wait", found.part.name)
        for unit in found.part.units:
            found.add(f"service {unit.name}: {reason}", "restart", unit.name, unit)


def is_saved_first(host: Host, placed: Placed, action: Action) -> bool:
    """A foreign file at a path of ours. Asked before our records name these paths: then they are ours."""
    if action.operation not in ("file", "download"):
        return False
    at = host.at(action.key)
    if not os.path.isfile(at) and not os.path.islink(at):
        return False
    if placed.get("file" if action.operation == "file" else "bin", action.key):
        return False
    # Another package or an administrator may use our names, too: gpu-fleet-node-exporter.service, /etc/gpu-fleet.
    return not (has_our_name(action.key) and placed.were_lost())
