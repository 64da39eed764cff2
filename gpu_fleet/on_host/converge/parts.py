"""One part: applied, restored when it does not come up, removed."""

from __future__ import annotations

import contextlib
from typing import Iterable, Sequence

from .difference import OF_UNIT, STARTS, Action, Difference, Differences, is_saved_first
from .disk import Content
from .errors import Failure, Pending
from .events import say
from .host import ENV_FILE
from .manifest import Directory, Download, File, Part, Unit, User
from .packages_in_use import used_by
from .programs import until
from .recording import declare, record_units
from .records import Record
from .services import SUPERVISOR_CONFIG, Waiting
from .things import Things
from .undo import Undo, saved_copy


class Parts:
    def __init__(self, things: Things, differences: Differences) -> None:
        self._on = things
        self._differences = differences

    # --- apply ------------------------------------------------------------------------------------------------------------------

    def converge(self, part: Part, changes: list[str]) -> None:
        """`changes` gets what was found. Raises Failure, with the part's previous state restored."""
        self._on.foreign.restored.clear()
        difference = self._differences.of(part)
        changes.extend(difference.changes)
        undo = Undo(self._on.host, self._on.disk, self._on.files, part.name)
        if not difference.actions:
            if part.name != "host":
                undo.end()  # left by a run that was interrupted after its last change
            declare(self._on, difference)
            return
        say(f"{part.name}: {len(difference.changes)} changes")
        undo.begin(self._on.placed, part.name)
        self._begin(difference)
        try:
            self._change(difference, undo, changes)
            self._on.readiness.wait(part)
        except (Failure, OSError) as error:
            failure = error if isinstance(error, Failure) else Failure.of(f"cannot change {error.filename or part.name}", error)
            if part.name != "host" and not isinstance(failure, Pending):
                self._put_back(part, undo, failure)
            raise failure from error
        record_units(self._on, part)
        self._drop(difference.obsolete, ("bin", "dir", "user", "group"), undo)
        self._on.placed.forget(difference.obsolete)
        self._on.foreign.drop_saved()
        self._differences.changed.update(difference.keys)
        if part.name != "host":
            undo.end()  # the old values are needed until the last part is done

    def _begin(self, difference: Difference) -> None:
        self._on.services.definitions_change = difference.definitions_change
        self._on.services.has_read = False

    def _change(self, difference: Difference, undo: Undo, changes: list[str]) -> None:
        """Performs the actions in the order of their dependencies."""
        part = difference.part
        if part.name == "host" and self._on.services.name != "supervisor" and self._on.placed.get("file", SUPERVISOR_CONFIG):
            self._on.manager("supervisor").leave()  # a host that was switched to systemd no longer needs it
        for action in difference.actions:
            if is_saved_first(self._on.host, self._on.placed, action):
                say(f"{action.key} existed before: a copy is kept in {self._on.host.state}/saved, and a removal restores it")
                self._on.foreign.save(action.key)
        declare(self._on, difference)
        if difference.definitions_change and self._on.services.harm(part.units):
            self._place_units_alone(difference, undo, changes)
        stopped = self._perform(difference, ("group", "package", "user", "dir", "foreign"), undo, changes)
        # A program that is replaced by one of another name exists until its successor does: it may be what runs us again.
        in_the_way = [record for record in difference.obsolete if self._on.wanted.needs_place_of(record)]
        self._drop(difference.obsolete, ("unit",), undo)
        self._drop(in_the_way, ("file",), undo)
        self._perform(difference, ("file", "download"), undo, changes)
        self._drop((record for record in difference.obsolete if record not in in_the_way), ("file",), undo)
        self._perform(difference, ("manager",), undo, changes)
        starting = [action for action in difference.actions if action.operation in STARTS] + stopped
        for action in starting:
            if isinstance(action.thing, Unit):
                self._on.services.enable(*action.thing)
        self._on.services.definitions([action.thing for action in starting if isinstance(action.thing, Unit)])
        if part.units:
            self._on.readiness.free_ports(part)
            for action in starting:
                if isinstance(action.thing, Unit):
                    getattr(self._on.services, action.operation)(*action.thing)

    def _place_units_alone(self, difference: Difference, undo: Undo, changes: list[str]) -> None:
        """With them, the service that runs still has all that it had, and it is started again with the rest. Unit files of an
        earlier run that nobody has read, and that are no longer wanted, give way to those that systemd has read, whose time is
        what it looks at."""
        is_unread = self._on.services.has_unread(difference.part.units)
        alone = [action for action in difference.actions if action.operation in ("foreign", "file") and OF_UNIT.match(action.key)]
        later = [action for action in difference.actions if action not in alone]
        difference.actions = alone
        self._perform(difference, ("foreign", "file"), undo, changes)
        if is_unread:
            files = (action.thing for action in alone)
            undo.restore_files(like={file.path: file.sha256 for file in files if isinstance(file, File)})
        difference.actions = later
        self._on.services.definitions(difference.part.units)

    def _perform(self, difference: Difference, operations: Sequence[str], undo: Undo, changes: list[str]) -> list[Action]:
        """In the order of the manifest. Returns the starts of units that had to be stopped meanwhile."""
        part = difference.part
        stopped: list[Action] = []
        for action in difference.actions:
            if action.operation not in operations:
                continue
            thing = action.thing
            if action.operation == "group":
                self._on.accounts.place_group(action.key, part.name)
            elif action.operation == "package":
                changes.extend(self._on.packages.place(action.key, part.name))
            elif action.operation == "foreign":
                self._on.foreign.remove(action.key)
            elif action.operation == "manager":
                self._on.services.prepare()
            elif isinstance(thing, User):
                if self._on.accounts.place_user(thing, part.name):
                    # usermod cannot change a home while a process of the user runs. What is stopped here is started later in this
                    # run.
                    for unit in part.units:
                        self._on.services.stop(*unit)
                        stopped.append(Action("start", unit.name, unit))
                    self._on.accounts.move_home(thing)
            elif isinstance(thing, Directory):
                self._on.files.place_directory(thing)
            elif isinstance(thing, File):
                undo.save(thing.path)
                self._on.files.place_file(thing)
            elif isinstance(thing, Download):
                undo.save(thing.path)
                self._on.downloads.place(thing, part.name)
        return stopped

    # --- restoring --------------------------------------------------------------------------------------------------------------

    def _put_back(self, part: Part, undo: Undo, failure: Failure) -> None:
        """The previous state; the failure gets the result of the restore added. Nothing that fails here hides it."""
        say(f"{part.name}: restoring the previous version")
        before = undo.placed()
        now = self._on.placed.of(part.name)
        had = {record.thing for record in before}
        made = [record for record in now if record.thing not in had]
        with contextlib.suppress(Failure, OSError):
            self._drop(made, ("unit",), None)
        with contextlib.suppress(Failure, OSError):
            undo.restore_files()
        self._on.foreign.restored = [record.key for record in made if record.kind in ("file", "bin")]
        with contextlib.suppress(Failure, OSError):
            self._drop(made, ("user",), None)
        with contextlib.suppress(Failure, OSError):
            self._on.placed.forget(now)
            self._on.foreign.drop_saved()
            # A directory that is not empty stays, and stays recorded as ours. So do packages, until the host is removed.
            self._on.placed.update([*before, *(record for record in made if record.kind in ("dir", "package"))])
            self._on.files.sweep(record for record in made if record.kind == "dir")
        units = [Unit(record.key, record.a) for record in before if record.kind == "unit"]
        for unit in units:
            with contextlib.suppress(Failure):
                self._on.services.enable(*unit)
        with contextlib.suppress(Failure):
            self._on.services.definitions(units)
        if units:
            end = "the previous version runs again" if self._runs_as_before(units) else "the previous version does not run either"
        else:
            end = "its previous state is restored" if before else "what was placed for it was removed"
        with contextlib.suppress(OSError):
            undo.end()
        failure.message = f"{failure.message}; {end}"

    def _runs_as_before(self, units: list[Unit]) -> bool:
        """Starts the old units. They ran with the old settings, which are put in place while they start, so that a bad port in
        the new settings stops nothing. The environment file is shared by all parts, so it gets the new settings back
        afterwards."""
        old = saved_copy(self._on.host, "host", ENV_FILE)
        if old:
            self._place_settings(old)
        for unit in units:
            with contextlib.suppress(Failure):
                self._on.services.restart(*unit)
        waiting = Waiting()
        is_steady = until(25, lambda: not self._on.readiness.unsteady(units, waiting))
        if old:
            self._place_settings(self._on.wanted.environment_file.content)
        return is_steady

    def _place_settings(self, content: Content) -> None:
        with contextlib.suppress(Failure):
            self._on.files.place_file(self._on.wanted.environment_file._replace(content=content))

    # --- removal ----------------------------------------------------------------------------------------------------------------

    def remove(self, part: Part, changes: list[str]) -> None:
        """Everything placed for it that no wanted part has."""
        name = part.name
        say(f"{name}: removing")
        self._on.foreign.restored.clear()
        difference = self._differences.former(name)
        obsolete = self._keep(part, difference, changes)
        self._begin(difference)
        self._drop(obsolete, ("unit",), None)
        if name == "host":
            self._on.services.leave()
        self._drop(obsolete, ("file",), None)
        # A removal ends with the part `host`; the service manager then forgets all units at once.
        if self._on.host.verb != "remove":
            self._on.services.definitions()
        self._drop(obsolete, ("bin", "dir", "user", "group"), None)
        self._on.placed.forget([*obsolete, *self._on.placed.of(name, "with")])
        self._on.foreign.drop_saved()
        self._differences.changed.update(difference.keys)
        if name != "host":
            Undo(self._on.host, self._on.disk, self._on.files, name).end()

    def _keep(self, part: Part, difference: Difference, changes: list[str]) -> list[Record]:
        """What is to be dropped: without its files where something else needs them by now, which are ours no more."""
        files = [record for record in difference.obsolete if record.kind == "file"]
        why = used_by(self._on.host, part) if files else ""
        if not why:
            changes.extend(difference.changes)
            return difference.obsolete
        for text in difference.changes:
            is_file = text.startswith("file ")
            changes.append(f"{text.partition(': ')[0]}: kept, because {why}" if is_file else text)
        self._on.placed.forget(files)
        return [record for record in difference.obsolete if record.kind != "file"]

    def _drop(self, records: Iterable[Record], kinds: Sequence[str], undo: Undo | None) -> None:
        """Removes these things from the host, deepest directory first, and restores saved foreign files."""
        ordered = sorted(records, key=lambda record: record.line, reverse=True)
        for kind in kinds:
            for record in ordered:
                if record.kind != kind:
                    continue
                if kind == "unit":
                    self._on.manager(record.b).stop(record.key, record.a)
                elif kind in ("file", "bin"):
                    if undo:
                        undo.save(record.key)
                    self._on.files.drop_file(record.key)
                    self._on.foreign.restore(record.key)
                elif kind == "dir":
                    self._on.files.drop_directory(record.key)
                elif kind == "user":
                    self._on.accounts.drop_user(record.key)
                elif kind == "group":
                    self._on.accounts.drop_group(record.key)

    def sweep(self) -> None:
        """Removes the directories that we made and no wanted part needs."""
        things: set[object] = set(self._on.wanted.things)
        self._on.files.sweep(record for record in self._on.placed.all() if record.kind == "dir" and record.name not in things)
