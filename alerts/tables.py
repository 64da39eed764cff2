"""What the tables of codes share: reading them, and the text of a code in an alert."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar


class Entry(Protocol):
    @property
    def code(self) -> int: ...

    @property
    def name(self) -> str: ...


Known = TypeVar("Known", bound=Entry)


class CatalogueError(ValueError):
    """A table of codes is invalid; the message lists every invalid row."""


def rows(lines: Iterable[str]) -> list[dict[str, str]]:
    """Of a CSV with comment lines."""
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def catalogue(file: str, lines: Iterable[str], entry: Callable[[Mapping[str, str]], Known]) -> dict[int, Known]:
    """The entries of a CSV by their code. `file`: its name, for errors. `entry`: raises ValueError for an invalid row.

    Raises:
        CatalogueError: with every invalid row at once.
    """
    found: dict[int, Known] = {}
    errors: list[str] = []
    for row in rows(lines):
        try:
            known = entry(row)
        except ValueError as error:
            errors.append(f"code {row['code']}: {error}")
            continue
        if known.code in found:
            errors.append(f"code {known.code}: is listed twice ({found[known.code].name}, {known.name}); remove one row")
        found[known.code] = known
    if errors:
        raise CatalogueError(f"{file} is invalid:\n  " + "\n  ".join(errors))
    return found


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
