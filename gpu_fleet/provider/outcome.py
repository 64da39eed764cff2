"""What a host's converge program reported: parsed first and cleaned then, so that no secret or control character changes its
structure; bounded, so that a host which prints without end costs no memory; and only of the types expected, so that no host
can end in a traceback."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gpu_fleet.provider.redaction import Redaction
from gpu_fleet.safetext.terminal import printable_line

# More than any host has by a factor of three to ten; what is beyond is counted or dropped. The facts and differences of a
# thousand hosts are in one state, and the errors of one host in one message.
_PARTS: Final = 200
_FACTS: Final = 500
_LISTED: Final = 500  # changes or differences of one part
_NEEDED: Final = 200  # files that a host asks for
_LONGEST_NAME: Final = 100
_LARGEST_FACTS: Final = 16 << 10  # characters of all facts; a host with 16 GPUs has 4,000
_LARGEST_LISTS: Final = 48 << 10  # of all changes and differences; the plan of a new host has 15,000
_LARGEST_ERRORS: Final = 16 << 10  # of all errors with their logs
_SHA256: Final = re.compile("[0-9a-f]{64}")


class Cleaner:
    """Of everything a host prints. Secrets go first: one may hold control characters."""

    def __init__(self, secrets: Iterable[str] = ()):
        self._redaction = Redaction(secrets)

    def message(self, text: str) -> str:
        """A message or a line of a log, as people read it."""
        return printable_line(self._redaction.text(text))

    def value(self, text: str) -> str:
        """A fact or a difference, which programs read too."""
        return printable_line(self._redaction.value(text))


@dataclass
class _Room:
    """What else of one host is kept."""

    left: int

    def takes(self, text: str) -> bool:
        if len(text) > self.left:
            self.left = 0
            return False
        self.left -= len(text)
        return True


@dataclass(frozen=True, kw_only=True)
class PartError:
    code: str
    message: str
    log: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class PartReport:
    status: str
    changes: tuple[str, ...] = ()
    drift: tuple[str, ...] = ()
    error: PartError | None = None


@dataclass
class Outcome:
    """`clock_off_s`: the host's clock minus ours, 0 where it is not known. `has_result`: the program came to its end.
    `is_absent`: nothing of ours is on the host. `renamed_from`: the name in the host's own record when this run came to give it
    another one. `is_first`: the host had no record of ours. `needs`: sha256 of the files without which it does not begin."""

    clock_off_s: float = 0.0
    facts: dict[str, str] = field(default_factory=dict)
    parts: dict[str, PartReport] = field(default_factory=dict)
    has_result: bool = False
    is_absent: bool = False
    renamed_from: str = ""
    is_first: bool = False
    needs: tuple[str, ...] = ()
    _for_facts: _Room = field(default_factory=lambda: _Room(_LARGEST_FACTS))
    _for_lists: _Room = field(default_factory=lambda: _Room(_LARGEST_LISTS))
    _for_errors: _Room = field(default_factory=lambda: _Room(_LARGEST_ERRORS))

    def add(self, line: bytes, cleaner: Cleaner) -> None:
        """One line of output. What is not an event, or lacks what an event of its kind has, is dropped."""
        event = _parsed(line)
        kind = event.get("event")
        if kind == "part" and (name := _name(event.get("part"))):
            if name in self.parts or len(self.parts) < _PARTS:
                self.parts[name] = self._report(event, cleaner)
        elif kind == "facts" and isinstance(facts := event.get("facts"), dict):
            for fact, given in facts.items():
                name, value = _name(fact), cleaner.value(_text(given))
                if len(self.facts) < _FACTS and self._for_facts.takes(name + value):
                    self.facts[name] = value
        elif kind == "clock" and isinstance(now := event.get("now"), int):
            self.clock_off_s = now - time.time()
        elif kind == "result":
            self.has_result = True
        elif kind == "absent":
            self.is_absent = True
        elif kind == "first":
            self.is_first = True
        elif kind == "needs" and isinstance(files := event.get("files"), list):
            self.needs = tuple(digest for digest in files[:_NEEDED] if isinstance(digest, str) and _SHA256.fullmatch(digest))
        elif kind == "renamed" and (name := _name(event.get("from"))):
            self.renamed_from = name

    def drift(self) -> list[str]:
        return [f"{name}: {line}" for name, report in self.parts.items() for line in report.drift]

    def changes(self) -> list[str]:
        return [f"{name}: {line}" for name, report in self.parts.items() for line in report.changes]

    def failures(self) -> dict[str, PartError]:
        return {name: report.error for name, report in self.parts.items() if report.error}

    def _report(self, event: Mapping[str, Any], cleaner: Cleaner) -> PartReport:
        error = event.get("error")
        return PartReport(
            status=_name(event.get("status")),
            changes=_listed(event.get("changes"), cleaner.value, self._for_lists),
            drift=_listed(event.get("drift"), cleaner.value, self._for_lists),
            error=self._error(error, cleaner) if isinstance(error, dict) else None,
        )

    def _error(self, error: Mapping[str, Any], cleaner: Cleaner) -> PartError:
        message = cleaner.message(_text(error.get("message")))
        return PartError(
            code=_name(error.get("code")) or "internal",
            message=message if self._for_errors.takes(message) else "more errors than are shown",
            log=_listed(error.get("log"), cleaner.message, self._for_errors),
        )


def _parsed(line: bytes) -> Mapping[str, Any]:
    if not line.startswith(b"{"):
        return {}
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):  # cut, binary, or nested deeper than any event
        return {}
    return event if isinstance(event, dict) else {}


def _listed(lines: object, cleaned: Callable[[str], str], room: _Room) -> tuple[str, ...]:
    if not isinstance(lines, list):
        return ()
    shown = tuple(itertools.takewhile(room.takes, (cleaned(_text(line)) for line in lines[:_LISTED])))
    more = (f"and {len(lines) - len(shown)} more",) if len(lines) > len(shown) else ()
    return (*shown, *more)


def _text(value: object) -> str:
    return value if isinstance(value, str) else str(value) if isinstance(value, (int, float)) else ""


def _name(value: object) -> str:
    """The name of a part, status or fact: part of the structure, so never redacted."""
    return printable_line(value[:_LONGEST_NAME]) if isinstance(value, str) else ""
