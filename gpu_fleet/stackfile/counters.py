"""The list of counters that dcgm-exporter collects, and what is wrong with one that somebody else wrote.

    counters("standard", base)      what every NVIDIA host and cluster gives; needs no capability
    counters("profiling", base)     that and how busy the parts of a GPU are; needs SYS_ADMIN
    counters("my.csv", base)        your list, as it is

A list has lines "field, Prometheus type, help"; the exporter takes neither a comma in the help nor a field that it does not
know, and ends itself over either. `find_errors` says so beforehand, line by line.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gpu_fleet.host.dcgm.fields import ECC_SINGLE_BIT, NVLINK_COUNTS, REMOVED_IN_4_7, known_fields
from gpu_fleet.host.part import ROOTFS
from gpu_fleet.stackfile.problems import nearest
from gpu_fleet.stackfile.values import local_path
from gpu_fleet.toolchain.versions import image

PRESETS = ("standard", "profiling")
_LISTS = ROOTFS / "etc/dcgm-exporter"
_TYPES = ("gauge", "counter", "label")
_PROFILING = "DCGM_FI_PROF_"
_SHOWN = 3  # of a longer list of names in a warning


@dataclass(frozen=True)
class Row:
    """One counter; `line` counts from 1."""

    line: int
    cells: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.cells[0]

    @property
    def kind(self) -> str:
        return self.cells[1]

    @property
    def number(self) -> int | None:
        """The field's number, the same for both of its names; None for a field nobody knows."""
        return known_fields().get(self.name)


@dataclass(frozen=True)
class LineError:
    """`line` counts from 1. `fix`: the next step."""

    line: int
    what: str
    expected: str
    fix: str


@dataclass(frozen=True)
class Counters:
    """`text`: a whole list, ready to be the file that the exporter reads."""

    text: str

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        lines = [(number, line) for number, line in enumerate(self.text.splitlines(), 1) if not _is_comment(line)]
        read = csv.reader(line for _, line in lines)
        return tuple(Row(number, tuple(cell.strip() for cell in cells)) for (number, _), cells in zip(lines, read, strict=True))

    @property
    def needs_sys_admin(self) -> bool:
        """Profiling is the one thing that does."""
        return any(row.name.startswith(_PROFILING) for row in self.rows)

    def find_errors(self) -> Iterator[LineError]:
        """Everything that would end the exporter or spoil its answer, line by line."""
        if not self.rows:
            yield LineError(1, "lists no counter", "lines `field, type, help`", "add some, or write `counters: standard`")
        seen: dict[int, Row] = {}
        for row in self.rows:
            if len(row.cells) != 3:
                yield LineError(
                    row.line, f"has {len(row.cells)} fields", "three: field, type, help", "take the commas out of the help"
                )
                continue
            if row.number is None:
                yield _unknown(row)
                continue
            if row.kind not in _TYPES:
                yield LineError(row.line, f'type "{row.kind[:40]}"', ", ".join(_TYPES), "write one of them")
            first = seen.setdefault(row.number, row)
            if first is not row:
                same = "" if first.name == row.name else f", which is the same field as {row.name}"
                what = f"line {first.line} has {first.name}{same}"
                yield LineError(row.line, what, "each field once", "remove one of the two")

    def find_warnings(self) -> Iterator[str]:
        """What the exporter takes and is probably not meant."""
        numbers = {row.number for row in self.rows}
        for row in self.rows:
            if row.number is not None and row.number in REMOVED_IN_4_7:
                yield f"line {row.line}: {row.name} is gone in DCGM 4.7; use {REMOVED_IN_4_7[row.number]} before an upgrade"
            if row.kind == "counter" and row.name.startswith(_PROFILING) and not row.name.endswith("_TOTAL"):
                yield f"line {row.line}: {row.name} is a rate, so a gauge; rate() of it means nothing"
        if numbers & ECC_SINGLE_BIT and numbers & NVLINK_COUNTS:
            yield "single-bit ECC and NVLINK_COUNT fields in one list: a GB200 gives neither; other GPUs give both"
        left_out = [row.name for row in counters("standard").rows if row.number not in numbers]
        if left_out:
            more = f" and {len(left_out) - _SHOWN} more" if len(left_out) > _SHOWN else ""
            yield f"leaves out {', '.join(left_out[:_SHOWN])}{more} of the standard list: alerts and panels on them stay empty"


def counters(setting: str, base: Path = Path()) -> Counters:
    """The list that a stack file's `dcgm.counters` means. `base`: where a relative path of a .csv starts.

    Raises OSError when the file cannot be read, UnicodeDecodeError when it is no text.
    """
    if setting not in PRESETS:
        return Counters(local_path(base, setting).read_text(encoding="utf-8"))
    standard = (_LISTS / "standard.csv").read_text()
    return Counters(standard if setting == "standard" else standard + "\n" + (_LISTS / "profiling.csv").read_text())


def _is_comment(line: str) -> bool:
    return not line.strip() or line.startswith("#")


def _unknown(row: Row) -> LineError:
    """An old spelling in lower case (dcgm-exporter 1.x) finds its field too."""
    meant = nearest(row.name, known_fields())
    fix = (
        f"did you mean {meant}?"
        if meant
        else "see https://docs.nvidia.com/datacenter/dcgm/latest/reference/field-identifiers.html"
    )
    return LineError(
        row.line, f"dcgm-exporter {image('dcgm-exporter').tag} does not know {row.name[:80]}", "a field of DCGM", fix
    )
