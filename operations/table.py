"""Tables for terminals."""

from __future__ import annotations

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns; the last one may hold several lines, which stay below each other."""
    widths = [max(map(len, column)) for column in zip(*([head, *rows]), strict=True)][:-1]
    indent = " " * sum(width + 2 for width in widths)
    lines = []
    for *cells, last in [head, *rows]:
        first, *below = last.splitlines() or [""]
        lines.append("".join(f"{cell:{width}}  " for cell, width in zip(cells, widths, strict=True)) + first)
        lines += [indent + line for line in below]
    return "\n".join(line.rstrip() for line in lines)
