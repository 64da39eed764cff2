"""What the tables of codes share: reading them, and the text of a code in an alert."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from alerts import texts


class Entry(Protocol):
    @property
    def code(self) -> int: ...

    @property
    def name(self) -> str: ...


Known = TypeVar("Known", bound=Entry)
Row = TypeVar("Row")


class CatalogueError(SystemExit):
    """A table is invalid; the message lists every invalid row. Tables are read on import, by nearly every command: whoever edits
    one gets this message from each, and no traceback."""


def entries(file: Path, entry: Callable[[Mapping[str, str]], Row]) -> list[Row]:
    """Of a CSV with comment lines. `entry`: raises ValueError for an invalid row.

    Raises:
        CatalogueError: with every invalid row at once.
    """
    found, errors = _read(texts.read(file).splitlines(keepends=True), entry)
    _refuse(file.name, errors)
    return found


def catalogue(file: str, lines: Iterable[str], entry: Callable[[Mapping[str, str]], Known]) -> dict[int, Known]:
    """The same by their code, of which each is there once. `file`: its name, for errors. Raises CatalogueError."""
    listed, errors = _read(lines, entry)
    found: dict[int, Known] = {}
    for known in listed:
        if known.code in found:
            errors.append(f"code {known.code}: is listed twice ({found[known.code].name}, {known.name}); remove one row")
        found[known.code] = known
    _refuse(file, errors)
    return found


def _read(lines: Iterable[str], entry: Callable[[Mapping[str, str]], Row]) -> tuple[list[Row], list[str]]:
    table = csv.DictReader(line for line in lines if not line.startswith("#"))
    columns = list(table.fieldnames or ())
    found, errors = [], []
    for row in table:
        try:
            if None in row or None in row.values():
                raise ValueError(f"expected {len(columns)} fields: {', '.join(columns)}")
            found.append(entry(row))
        except ValueError as error:
            errors.append(f"{columns[0]} {row[columns[0]]}: {error}")
    return found, errors


def _refuse(file: str, errors: Sequence[str]) -> None:
    if errors:
        raise CatalogueError(f"alerts/{file} is invalid:\n  " + "\n  ".join(errors))


def text_by_label(texts: Mapping[Any, str], label: str, other: str = "") -> str:
    """A template that prints the text for the value of an alert's label. `other`: for all other values."""
    values: dict[str, list[object]] = {}
    for value, text in texts.items():
        if text != other:
            values.setdefault(text, []).append(value)
    if not values:
        return other
    arms = [f'if match "^({"|".join(map(str, found))})$" $labels.{label} }}}}{text}' for text, found in values.items()]
    return "{{ " + "{{ else ".join(arms) + (f"{{{{ else }}}}{other}" if other else "") + "{{ end }}"
