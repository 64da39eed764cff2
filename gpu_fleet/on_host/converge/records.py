"""What was placed on this host: one line KIND, KEY, PART, A, B, C per thing, see README.md. A thing is recorded before it is
placed, so that after an interrupted run the next one knows everything that may exist."""

from __future__ import annotations

import os
from typing import Iterable, NamedTuple

from .disk import Disk, create
from .errors import Failure
from .programs import read


class Record(NamedTuple):
    kind: str
    key: str
    part: str
    a: str = "-"
    b: str = "-"
    c: str = "-"

    @property
    def name(self) -> tuple[str, str]:
        return self.kind, self.key

    @property
    def thing(self) -> tuple[str, str, str]:
        """Its name, and of a unit its type: a service that was a timer is another thing."""
        return (*self.name, self.a if self.kind == "unit" else "")

    @property
    def line(self) -> str:
        return "\t".join(field or "-" for field in self)


def parse(text: str) -> list[Record]:
    found = []
    for line in text.split("\n"):
        fields = line.split("\t")
        if len(fields) >= 3:
            found.append(Record(*fields[:6]))
    return found


def render(records: Iterable[Record]) -> bytes:
    return "".join(f"{record.line}\n" for record in records).encode("utf-8", "surrogateescape")


class Placed:
    """The list. `exists`: whether there is a file of it."""

    def __init__(self, state: str, disk: Disk) -> None:
        self._path = f"{state}/placed"
        self._disk = disk
        self.exists = os.path.isfile(self._path)
        self._records: dict[tuple[str, str], Record] = {}
        if self.exists:
            try:
                self._records = {record.name: record for record in parse(read(self._path))}
            except OSError as error:
                raise Failure("no-write", f"cannot read {self._path}; run as root (sudo)") from error

    def all(self) -> list[Record]:
        return list(self._records.values())

    def get(self, kind: str, key: str) -> Record | None:
        return self._records.get((kind, key))

    def of(self, part: str, kind: str = "") -> list[Record]:
        return [record for record in self._records.values() if record.part == part and kind in ("", record.kind)]

    def parts(self) -> list[str]:
        """In the order of their first records."""
        return list({record.part: None for record in self._records.values()})

    def update(self, add: Iterable[Record] = (), drop: Iterable[tuple[str, str]] = ()) -> None:
        """On disk when this returns. A record of the same kind and key is replaced at its place."""
        records = dict(self._records)
        fresh = {record.name: record for record in add}
        for name in drop:
            if name not in fresh:
                records.pop(name, None)
        records.update(fresh)
        if records == self._records and self.exists:
            return
        create(f"{self._path}.new", render(records.values()))
        self._disk.commit(f"{self._path}.new", self._path)
        self._records = records
        self.exists = True

    def forget(self, records: Iterable[Record]) -> None:
        """But for those that others of the same kind and key have replaced."""
        self.update(drop=[record.name for record in records if self._records.get(record.name) == record])

    def were_lost(self) -> bool:
        """Then what has our name and no record may be ours."""
        first = self.get("format", "1")
        return first is not None and first.a == "lost"
