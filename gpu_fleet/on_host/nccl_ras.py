"""What NCCL's RAS answers about the ranks of a job: which are dead, silent, failed, or behind in their collectives.

Everything in an answer is the job's to write, and any user may listen on the port: it is cut, checked and cleaned. Read-only: the
commands sent are SET FORMAT, TIMEOUT and STATUS. Not done here: MONITOR, and ranks in network namespaces of their own.
Source: NVIDIA/nccl, src/ras/client_support.cc (text since 2.24, JSON since 2.28.7), read at 2.30 on 2026-11-29.
"""

from __future__ import annotations

import json
import re
import socket
import time
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

PORT = 28028  # NCCL_RAS_ADDR sets another
LONGEST_S = 20.0  # of one answer: RAS itself waits 5 s for ranks, and 5 s more
MOST_BYTES = 64 << 20  # 700 bytes for each rank of each communicator
MOST_TEXT = 64
KINDS = ("dead", "silent", "error", "behind", "ahead", "left")  # the most certain first
_IN_ORDER = (0, 7)  # ncclSuccess, ncclInProgress
_ERRORS = {
    1: "CUDA error",
    2: "system error",
    3: "internal error",
    4: "invalid argument",
    5: "invalid usage",
    6: "error of a peer",
}


class RasError(Exception):
    """Why there is no answer that can be read: a sentence."""


class Rank(NamedTuple):
    """`gpu`: NVML's number as the process sees it. `pid`: 0, and texts empty, where RAS does not know."""

    rank: str
    host: str = ""
    pid: int = 0
    gpu: str = ""


class Group(NamedTuple):
    """Ranks that have launched an operation `times`; `named`: those that the answer lists."""

    times: int
    size: int
    named: Sequence[Rank]


class Answer(NamedTuple):
    """`facts`: kind, rank and why. `groups`: by communicator and operation; of a text where counts differ.
    `ranks`: all that are listed."""

    version: str
    communicators: int
    ranks: Sequence[Rank]
    facts: Sequence[tuple[str, Rank, str]]
    groups: Mapping[tuple[str, str], Sequence[Group]]


def parsed(text: str) -> Answer:
    """Raises RasError."""
    begin = text.find("{")
    if begin >= 0 and '"communicators"' in text[begin : begin + 1000]:
        try:
            return _of_json(json.JSONDecoder().raw_decode(text, begin)[0])
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise RasError(f"the JSON of NCCL's RAS is not whole: {error!r:.80}") from None
    if "Communicators..." not in text:
        raise RasError(f"no answer of NCCL's RAS: {clean(text) or 'it is empty'}")
    if not re.search(r"^Warnings$", text, re.MULTILINE):
        raise RasError("the answer of NCCL's RAS is not whole: its last section is missing")
    return _of_text(text)


def found(last: Answer, before: Answer | None = None) -> list[tuple[str, Rank, str]]:
    """Kind, rank and why. A rank is behind, or ahead, where its count is not that of most ranks and has not moved since
    the answer `before`; without one it may be so in passing."""
    named = list(last.facts)
    for key, groups in last.groups.items():
        usual = max(groups, key=lambda group: (group.size, group.times)).times
        was = {rank: group.times for group in (before.groups.get(key, ()) if before else ()) for rank in group.named}
        for group in groups:
            for rank in group.named if group.times != usual else ():
                if before is None or was.get(rank) == group.times:
                    kind = "behind" if group.times < usual else "ahead"
                    named.append((kind, rank, f"{key[1]} {group.times}, most ranks {usual}"))
    return sorted(named, key=lambda one: KINDS.index(one[0]))


def _of_json(said: Mapping[str, Any]) -> Answer:
    ranks: list[Rank] = []
    facts: list[tuple[str, Rank, str]] = []
    groups: dict[tuple[str, str], Sequence[Group]] = {}
    for communicator in said["communicators"]:
        counts: dict[str, dict[int, list[Rank]]] = {}
        for one in communicator["ranks"]:
            rank, status = _rank(one), one["status"]
            ranks.append(rank)
            for name in ("init_state", "async_error"):
                if int(status[name]) not in _IN_ORDER:
                    facts.append(("error", rank, _ERRORS.get(int(status[name]), f"error {int(status[name])}")))
            if status["abort_flag"]:
                facts.append(("error", rank, "has aborted"))
            for operation, count in one["collective_counts"].items():
                counts.setdefault(clean(operation), {}).setdefault(int(count), []).append(rank)
        for one in communicator["missing_ranks"]:
            rank, status = _rank(one), one["status"]
            ranks.append(rank)
            kind = "dead" if status["considered_dead"] else "silent" if status["unresponsive"] else "left"
            facts.append((kind, rank, ""))
        for operation, by_count in counts.items():
            of_one = [Group(count, len(named), named) for count, named in by_count.items()]
            groups[f"{clean(communicator['hash'])} {clean(communicator['secondary_hash'])}", operation] = of_one
    return Answer(clean(said.get("nccl_version", "")), len(said["communicators"]), ranks, facts, groups)


def _rank(one: Mapping[str, Any]) -> Rank:
    host, pid = clean(one["host"]), int(one["pid"])
    return Rank(str(int(one["rank"])), "" if host == "unknown" else host, max(pid, 0), str(int(one["nvml_dev"])))


# --- the text -----------------------------------------------------------------------------------------------------------------

_GPU = r"GPUs? ([\d,]+)(?: \(NVML ([\d,]+)\))?"
_PROCESS = re.compile(rf"Process (\d+) on node (\S+) managing {_GPU}")
_RANK = re.compile(
    r"Rank (\d+)(?: has launched up to operation (\d+)| has (not) launched any operations| has status (\w+)| reported (.+))?"
    rf" -- (?:{_GPU} managed by process (\d+) on node (\S+)|\[)"
)
_GROUP = re.compile(
    r"(\d+) ranks (?:have (?:launched up to operation (\d+)|(not) launched any operations|status (\w+))|reported (.+))"
)
_HEAD = re.compile(r"(?:#\S+ \(([0-9a-f]+)\) )?(DEAD|INCOMPLETE|ERROR|MISMATCH|TIMEOUT)$")
_DIFFERENT = re.compile(r"Communicator ranks have different (?:(\w+) operation counts|(?:collective operation counts|status)$)")
_STATUS = {"NOCOMM": ("left", ""), "ABORT": ("error", "has aborted")}
_PASSING = ("INIT", "RUNNING", "FINALIZE")


def _of_text(text: str) -> Answer:
    """A section has a heading, then groups, each followed by its ranks where they are few."""
    ranks: list[Rank] = []
    facts: list[tuple[str, Rank, str]] = []
    groups: dict[tuple[str, str], list[Group]] = {}
    kind = communicator = operation = why = ""
    for line in map(str.strip, text.splitlines()):
        if head := _HEAD.match(line):
            communicator, kind = head[1] or "", {"DEAD": "dead", "INCOMPLETE": "silent"}.get(head[2], "")
            operation = why = ""
        elif process := _PROCESS.match(line):
            ranks.append(Rank("", process[2], int(process[1]), process[4] or process[3]))
            facts.append((kind or "silent", ranks[-1], ""))
        elif lacking := re.match(r"The missing ranks?: ([\d, ]+)$", line):  # of 2.24 and 2.25
            facts += [("silent", Rank(number), "") for number in re.findall(r"\d+", lacking[1])]
        elif said := _DIFFERENT.match(line):
            operation, why = said[1] or ("" if line.endswith("status") else "collective"), ""
        elif group := _GROUP.match(line):
            why = group[4] or group[5] or ""
            if not why:
                groups.setdefault((communicator, operation), []).append(Group(int(group[2] or 0), int(group[1]), []))
        elif one := _RANK.match(line):
            rank = Rank(one[1], one[9] or "", int(one[8] or 0), one[7] or one[6] or "")
            ranks.append(rank)
            reason = one[4] or one[5] or why
            of_one = groups.setdefault((communicator, operation), [])
            if one[2] or one[3]:
                of_one.append(Group(int(one[2] or 0), 1, [rank]))
            elif kind:
                facts.append((kind, rank, ""))
            elif reason and reason not in _PASSING:
                is_of, note = _STATUS.get(reason, ("error", clean(reason)))
                facts.append((is_of, rank, note))
            elif not reason and of_one:
                of_one[-1] = of_one[-1]._replace(named=[*of_one[-1].named, rank])
    groups = {key: of_one for key, of_one in groups.items() if of_one}
    number = sum(int(row[1]) for row in re.finditer(r"^ +\d+ +(\d+) +\d+ +[\d-]+ +\d+ +\d+ +[A-Z]", text, re.MULTILINE))
    version = re.search(r"NCCL version (\S+)", text)
    return Answer(clean(version[1]) if version else "", number, ranks, facts, groups)


def clean(value: object) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in str(value)[:MOST_TEXT]).strip()


# --- the port -----------------------------------------------------------------------------------------------------------------


def asked(port: int = PORT) -> str:
    """The whole answer of a job's RAS on this host: JSON, or text of an NCCL that has no JSON. Raises RasError."""
    until = time.monotonic() + LONGEST_S
    try:
        with socket.create_connection(("localhost", port), timeout=3) as connection:
            connection.sendall(b"CLIENT PROTOCOL 2\nSET FORMAT json\nVERBOSE STATUS\n")
            said = b"".join(_blocks(connection, until))
    except OSError as error:
        raise RasError(f"port {port} of this host: {error}; a job with NCCL 2.24 or newer listens there") from None
    return said.decode("utf-8", "replace")


def _blocks(connection: socket.socket, until: float) -> Iterator[bytes]:
    left = MOST_BYTES
    while left > 0:
        within_s = until - time.monotonic()
        if within_s <= 0:
            raise TimeoutError(f"not whole after {LONGEST_S:.0f} s")
        connection.settimeout(within_s)
        block = connection.recv(min(1 << 16, left))
        if not block:
            return
        left -= len(block)
        yield block
    raise OSError(f"more than {MOST_BYTES >> 20} MiB")
