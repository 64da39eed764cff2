"""Records of what a part places, written before it is placed."""

from __future__ import annotations

import os

from .difference import STARTS, Difference
from .manifest import Part
from .records import Record
from .things import Things


def declare(on: Things, difference: Difference) -> None:
    """Everything that the part places, before it is placed: what it declares, and the directories that its actions create.
    The `with` records of units about to be changed are dropped, until they are up again."""
    part = difference.part
    changing = {action.key for action in difference.actions if action.operation in STARTS}
    stale = [record.name for record in on.placed.all() if record.kind == "with" and record.key.partition(":")[0] in changing]
    directories = _new_directories(on, difference)
    made = {record.key for record in (*on.placed.all(), *directories) if record.kind == "dir"}
    records = [Record("file", file.path, part.name, file.sha256) for file in part.files] + directories
    for directory in part.directories:
        # A directory that we create, also one that we created for a file of an earlier part, belongs to the part that
        # declares it. A link in its place is an administrator's, who has another disk for it.
        is_theirs = directory.contents != "runtime" and os.path.islink(on.host.at(directory.path))
        if directory.path in made or ("/gpu-fleet/" in f"{directory.path}/" and not is_theirs):
            records.append(Record("dir", directory.path, part.name, directory.contents))
    records += [Record("unit", unit.name, part.name, unit.type, on.wanted.manager) for unit in part.units]
    for download in part.downloads:
        # The source of a program is recorded when it is placed, so what is known of an existing one is kept.
        old = on.placed.get("bin", download.path) or Record("bin", download.path, part.name)
        records.append(old._replace(part=part.name))
    on.placed.update(records, stale)


def _new_directories(on: Things, difference: Difference) -> list[Record]:
    """Missing ones, and those above what is placed. Something else in its place is not ours."""
    found: dict[str, None] = {}
    for action in difference.actions:
        if action.operation in ("dir", "file", "download"):
            found.update(dict.fromkeys(on.files.missing_parents(action.key)))
            if action.operation == "dir" and not os.path.lexists(on.host.at(action.key)):
                found[action.key] = None
    return [Record("dir", path, "host", "shared") for path in found if not on.placed.get("dir", path)]


def record_units(on: Things, part: Part) -> None:
    """What its units, which are up, run with."""
    if part.units:
        causes = on.wanted.causes
        on.placed.update(
            Record("with", f"{unit}:{cause}", part.name, causes[cause])
            for unit, cause in (*part.restart, *part.reload)
            if cause in causes
        )
