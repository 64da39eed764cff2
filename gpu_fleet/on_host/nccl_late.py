"""`gpu-fleet-jobs late DIRECTORY`: which ranks of a job come late to its collectives, by what NCCL's Inspector has written.

A kernel of a collective runs from the arrival of its own rank until the last rank has arrived and the data is through. The rank
on which it takes the least time has kept the others waiting. Found as JobSlowedByGpu is: by the deviation from the job's median,
in 8 of 15 windows of equal numbers of operations. A slow link makes a collective longer on all ranks and names none.
Source: NVIDIA/nccl, plugins/profiler/inspector (inspector_json.cc, format v4.0), read at 2.30 on 2026-11-29.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path
from statistics import median
from typing import Any, Iterable, Iterator, Mapping, NamedTuple, Sequence

from .nccl_ras import clean

WINDOWS, OF_THEM = 15, 8
SHARE = 0.15  # of the median's time
AT_LEAST_US = 100
FEWEST = 20  # operations in a window: of fewer the last to arrive is chance
FEWEST_RANKS = 4
MOST_FILES = 4096
MOST_BYTES = 256 << 20  # of all files together, the newest lines of each
_LONGEST_US = 1e12
_ALL_WAIT = ("AllReduce", "AllGather", "ReduceScatter")  # of the others a rank may leave before the rest has come


class Operation(NamedTuple):
    """One collective on one rank. `key`: communicator and kind; `number`: the same on all ranks."""

    key: tuple[str, str]
    number: int
    rank: int
    ranks: int
    place: str
    microseconds: float


class Late(NamedTuple):
    place: str
    rank: int
    ranks: int
    kind: str
    share: float
    microseconds: float
    windows: int


def parsed(line: str) -> Operation | None:
    """None: not a collective of all ranks with the kernel's own time, or not a whole line."""
    try:
        said: Any = json.loads(line)
        header, metadata, measured = said["header"], said["metadata"], said["coll_perf"]
        kind = str(measured["coll"])
        if kind not in _ALL_WAIT or measured.get("coll_timing_source", "kernel_gpu") == "collective_cpu":
            return None
        place = f"{clean(metadata['hostname'])}  process {int(metadata['pid'])}"
        number, rank, ranks = int(measured["coll_sn"]), int(header["rank"]), int(header["n_ranks"])
        took = float(measured["coll_exec_time_us"])
        return Operation((clean(header["id"]), kind), number, rank, ranks, place, took) if 0 <= took < _LONGEST_US else None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return None


def found(operations: Iterable[Operation]) -> tuple[list[Late], list[str], int]:
    """The latest first; what is not evaluated, and why; and how many kinds of collectives are."""
    times: dict[tuple[str, str], dict[int, dict[int, float]]] = {}
    places: dict[tuple[tuple[str, str], int], str] = {}
    sizes: dict[tuple[str, str], int] = {}
    for one in operations:
        times.setdefault(one.key, {}).setdefault(one.number, {})[one.rank] = one.microseconds
        places[one.key, one.rank] = one.place
        sizes[one.key] = one.ranks
    late: list[Late] = []
    notes: list[str] = []
    evaluated = 0
    for key, by_number in times.items():
        seen = {rank for of_one in by_number.values() for rank in of_one}
        name = f"{key[1]} of communicator {key[0]}"
        whole = [
            by_number[number] for number in sorted(by_number) if len(by_number[number]) >= max(FEWEST_RANKS, 0.75 * len(seen))
        ]
        if sizes[key] < FEWEST_RANKS:
            continue
        if len(whole) < WINDOWS * FEWEST:
            notes.append(f"{name}: {len(whole)} operations are known of enough ranks, {WINDOWS * FEWEST} are needed")
            continue
        evaluated += 1
        if len(seen) < sizes[key]:
            notes.append(f"{name}: {sizes[key] - len(seen)} of {sizes[key]} ranks have no records")
        late += [
            Late(places[key, rank], rank, sizes[key], key[1], *by_rank) for rank, by_rank in _of_one(whole).items() if by_rank
        ]
    return sorted(late, key=lambda one: -one.microseconds), notes, evaluated


def _of_one(operations: Sequence[Mapping[int, float]]) -> dict[int, tuple[float, float, int] | None]:
    """By rank: the share of the median's time, the microseconds in each operation, and the windows in which it was late."""
    medians = [median(of_one.values()) for of_one in operations]
    windows = [range(n * len(operations) // WINDOWS, (n + 1) * len(operations) // WINDOWS) for n in range(WINDOWS)]

    def behind(rank: int, which: Sequence[int]) -> tuple[float, float]:
        which = [n for n in which if rank in operations[n]]
        waited = sum(medians[n] - operations[n][rank] for n in which)
        return waited / (sum(medians[n] for n in which) or 1), waited / (len(which) or 1)

    result: dict[int, tuple[float, float, int] | None] = {}
    for rank in {rank for of_one in operations for rank in of_one}:
        share, each = behind(rank, range(len(operations)))
        count = sum(_is_late(*behind(rank, window)) for window in windows)
        result[rank] = (share, each, count) if _is_late(share, each) and count >= OF_THEM else None
    return result


def _is_late(share: float, each_us: float) -> bool:
    return share >= SHARE and each_us >= AT_LEAST_US


def lines(directory: Path) -> Iterator[str]:
    """The end of each file, whatever it is: regular files alone, without following links. Raises OSError."""
    names = sorted(entry.path for entry in os.scandir(directory) if entry.name.endswith((".log", ".json", ".jsonl")))
    most = MOST_BYTES // max(1, len(names[:MOST_FILES]))
    for name in names[:MOST_FILES]:
        try:
            number = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        with open(number, "rb") as file:  # noqa: PTH123  a number
            status = os.fstat(number)
            if stat.S_ISREG(status.st_mode):
                file.seek(max(0, status.st_size - most))
                yield from file.read(most).decode("utf-8", "replace").splitlines()


def main(arguments: Sequence[str]) -> int:
    """0: no rank is late; 1: some are; 2: not known."""
    if len(arguments) != 1:
        print("gpu-fleet-jobs late: expected: gpu-fleet-jobs late DIRECTORY", file=sys.stderr)
        return 2
    try:
        late, notes, evaluated = found(filter(None, map(parsed, lines(Path(arguments[0])))))
    except OSError as error:
        print(f"gpu-fleet-jobs late: {error}", file=sys.stderr)
        return 2
    rows: dict[str, Late] = {}  # a process is in several communicators: where it is latest
    for one in late:
        rows.setdefault(one.place, one)
    for one in list(rows.values())[:64]:
        print(
            f"late  {one.place}  rank {one.rank} of {one.ranks}: {one.microseconds:.0f} us ({one.share:.0%}) after the median"
            f" in each {one.kind}, in {one.windows} of {WINDOWS} windows"
        )
    for note in notes[:16]:
        print(f"note: {note}", file=sys.stderr)
    if not evaluated:
        print(f"gpu-fleet-jobs late: {arguments[0]} has no records of NCCL's Inspector that suffice", file=sys.stderr)
        return 2
    return 1 if rows else 0
