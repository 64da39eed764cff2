"""Two versions of a text, short enough to read: where they differ. Pure."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator
from typing import Final

_WIDTH: Final = 200  # of a line of a diff, in characters
_BEFORE: Final = 30  # characters of context


def around(old: str, new: str, longest: int = 100) -> tuple[str, str]:
    """Both, cut to `longest` characters from a little before the first difference."""
    if max(len(old), len(new)) <= longest:
        return old, new
    same = next((place for place, pair in enumerate(zip(old, new, strict=False)) if pair[0] != pair[1]), min(len(old), len(new)))
    start = max(0, same - _BEFORE)
    return _cut(old, start, longest), _cut(new, start, longest)


def _cut(text: str, start: int, longest: int) -> str:
    rest = text[start:]
    return ("…" if start else "") + (rest if len(rest) <= longest else rest[:longest] + "…")


def diff(old: str, new: str) -> Iterator[str]:
    """Lines of a unified diff without its header. A long line is compared, and shown, in pieces."""
    lines = difflib.unified_diff(_pieces(old), _pieces(new), lineterm="", n=2)
    yield from itertools.islice(lines, 2, None)  # the first two name files


def _pieces(text: str) -> list[str]:
    return [line[at : at + _WIDTH] for line in text.splitlines() for at in range(0, len(line) or 1, _WIDTH)]
