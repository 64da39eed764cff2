"""What a run of `pulumi up` did on each host, as a table: from the events that pulumi writes into a file.

Source: pulumi 3.259.0, sdk/go/common/apitype/events.go; pkg/backend/display/display.go (startEventLogger), read 2026-11-22. The
option `--event-log` exists with PULUMI_DEBUG_COMMANDS alone. The file has no secrets, and the events of one operation: those of
an update replace those of its preview.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from gpu_fleet.operations.table import table

_HOST: Final = "gpu-fleet:host:Host"
_COLOUR: Final = re.compile(r"<\{%[^%]*%\}>|\x1b\[[0-9;]*m")
_WORDS: Final = {"create": "created", "update": "changed", "same": "unchanged", "delete": "removed", "read": "read"}
_SUMMARY: Final = "summaryEvent"
_STARTED, _HAS_FAILED = "resourcePreEvent", "resOpFailedEvent"
_STEPS: Final = (_STARTED, "resOutputsEvent", _HAS_FAILED)
_MOST: Final = 20  # of hosts that are unchanged, or were not reached: more are only counted
_FAILED, _NOT_REACHED, _UNCHANGED = "failed", "not reached", _WORDS["same"]


@dataclass
class Result:
    """Of one host. `seconds`: None if nothing was done there. `cause`: why it failed."""

    word: str = _NOT_REACHED
    started: int = 0
    seconds: int | None = None
    facts: Mapping[str, str] = field(default_factory=dict)
    cause: str = ""


def results(events: Iterable[str], hosts: Iterable[str]) -> dict[str, Result]:
    """By host. `hosts`: those that the run should reach. Empty if it changed nothing, because it ended with its preview."""
    found = {host: Result() for host in hosts}
    is_update = False
    for line in events:
        if _HOST not in line and _SUMMARY not in line:
            continue
        try:
            event = json.loads(line)
        except ValueError:
            break  # pulumi was killed while it wrote the last one
        if _SUMMARY in event:
            is_update = not event[_SUMMARY]["isPreview"]
        elif "diagnosticEvent" in event:
            _add_cause(found, event["diagnosticEvent"])
        elif kind := next((key for key in _STEPS if key in event), None):
            metadata = event[kind]["metadata"]
            name = _name(metadata["urn"])
            # Hosts that a run for some hosts leaves out are the same in it, too.
            is_included = name in found or metadata["op"] != "same"
            if metadata["type"] == _HOST and is_included:
                _add_step(found.setdefault(name, Result()), kind, metadata, event["timestamp"])
    return found if is_update else {}


def _name(urn: str) -> str:
    return urn.rpartition("::")[2]


def _add_cause(found: dict[str, Result], diagnostic: Mapping[str, Any]) -> None:
    if diagnostic.get("severity") == "error" and f"{_HOST}::" in diagnostic.get("urn", ""):
        lines = [line.strip() for line in _COLOUR.sub("", diagnostic["message"]).splitlines() if line.strip()]
        name = _name(diagnostic["urn"])
        result = found.setdefault(name, Result())
        result.cause = result.cause or next(iter(lines), "").removeprefix("error: ").removeprefix(f"{name}: ")


def _add_step(result: Result, kind: str, metadata: Mapping[str, Any], at: int) -> None:
    if kind == _STARTED:
        result.started = at
        return
    has_failed = kind == _HAS_FAILED
    result.word = _FAILED if has_failed else _WORDS.get(metadata["op"], metadata["op"])
    state = metadata.get("new") or metadata.get("old") or {}
    facts = (state.get("outputs") or {}).get("facts")
    result.facts = facts if isinstance(facts, Mapping) else {}
    if has_failed or metadata["op"] != "same":
        result.seconds = at - (result.started or at)


def shown(found: Mapping[str, Result]) -> str:
    """The table, failed hosts first, and a line that counts; plain text on a terminal too."""
    words = [result.word for result in found.values()]
    left_out = {word for word in (_UNCHANGED, _NOT_REACHED) if words.count(word) > _MOST}
    order = (_FAILED, _NOT_REACHED)
    ranked = sorted(found.items(), key=lambda item: order.index(item[1].word) if item[1].word in order else len(order))
    rows = [_row(name, result) for name, result in ranked if result.word not in left_out]
    lines = [table(("HOST", "RESULT", "GPUS", "EXPORTER", "SECONDS", "CAUSE OR REASON"), rows), ""] if rows else []
    counted = ", ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(result.word for _, result in ranked))
    without = f" (not listed: {' and '.join(sorted(left_out))})" if left_out else ""
    return "\n".join([*lines, f"{len(words)} host{'' if len(words) == 1 else 's'}: {counted}{without}."])


def _row(name: str, result: Result) -> Sequence[str]:
    facts = result.facts
    reason = facts.get("GPU_FLEET_EXPORTER_REASON", "")
    return (
        name,
        result.word,
        facts.get("GPU_MODELS", "-"),
        facts.get("GPU_FLEET_EXPORTER_MODE", "-"),
        "-" if result.seconds is None else str(result.seconds),
        result.cause or ("see the diagnostics above" if result.word == _FAILED else reason),
    )
