"""Tables for terminals."""

from __future__ import annotations

from collections.abc import Sequence

from gpu_fleet.safetext.terminal import printable_line


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns; the last one may hold several lines, which stay below each other. Cells may be text from outside."""
    shown = [
        ([printable_line(cell) for cell in cells], [printable_line(line) for line in last.splitlines()] or [""])
        for *cells, last in [head, *rows]
    ]
    widths = [max(map(len, column)) for column in zip(*(cells for cells, _ in shown), strict=True)]
    indent = " " * sum(width + 2 for width in widths)
    lines = []
    for cells, (first, *below) in shown:
        lines.append("".join(f"{cell:{width}}  " for cell, width in zip(cells, widths, strict=True)) + first)
        lines += [indent + line for line in below]
    return "\n".join(line.rstrip() for line in lines)
