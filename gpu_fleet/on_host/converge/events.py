"""What this program prints: JSON lines on stdout for programs, sentences on stderr for people."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Sequence, TextIO

from .errors import Failure

_NOT_TEXT = re.compile("[\ud800-\udfff]")  # bytes that are not UTF-8, as surrogateescape reads them


def _clean(text: str) -> str:
    """The output always parses, whatever bytes a service has logged."""
    return _NOT_TEXT.sub("?", text)


def _print(stream: TextIO, line: str) -> None:
    """Whoever reads may be gone; the work goes on, and its exit code is that of the work: Python does not try again at the end to
    write what it could not."""
    try:
        stream.write(f"{line}\n")
        stream.flush()
    except OSError:
        with open(os.devnull, "wb") as nothing:
            os.dup2(nothing.fileno(), stream.fileno())


def without_password(url: str) -> str:
    """A mirror's URL may hold one."""
    return re.sub("//[^/@]*@", "//", url)


def say(text: str) -> None:
    _print(sys.stderr, _clean(text))


def emit(event: dict[str, object]) -> None:
    _print(sys.stdout, _clean(json.dumps(event, ensure_ascii=False, separators=(",", ":"))).replace("\x7f", "\\u007f"))


class Report:
    """Counts what was reported, for the result. `drift_items`: of each part that was checked."""

    def __init__(self, verb: str) -> None:
        self._verb = verb
        self.changed = self.failed = self.drift = 0
        self.digest = self.settings_digest = ""
        self.drift_items: dict[str, int] = {}

    def part(
        self,
        name: str,
        status: str,
        changes: Sequence[str] = (),
        drift: Sequence[str] = (),
        failure: Failure | None = None,
    ) -> None:
        event: dict[str, object] = {"event": "part", "part": name, "status": status}
        if changes:
            event["changes"] = list(changes)
        if drift:
            event["drift"] = list(drift)
        if failure:
            error: dict[str, object] = {"code": failure.code, "message": failure.message.rstrip("\n")}
            if failure.log:
                error["log"] = [line for text in failure.log for line in text.split("\n")]
            event["error"] = error
            say(f"{name}: {failure.message}")
        emit(event)
        self.changed += status in ("changed", "would-change", "removed")
        self.failed += status == "failed"
        self.drift += status == "drift"
        if status not in ("unchanged", "not-wanted", "failed"):
            say(f"{name}: {status}")

    def difference(self, name: str, lines: Sequence[str]) -> None:
        """What a check found."""
        self.drift_items[name] = len(lines)
        self.part(name, "drift" if lines else "unchanged", drift=lines)

    def facts(self, facts: dict[str, str]) -> None:
        emit({"event": "facts", "facts": facts})

    def result(self) -> int:
        """Prints it, and returns the exit code."""
        emit(
            {
                "event": "result",
                "verb": self._verb,
                "ok": not self.failed and not self.drift,
                "changed": self.changed,
                "failed": self.failed,
                "drift": self.drift,
                "digest": self.digest,
                "settings_digest": self.settings_digest,
            }
        )
        return 1 if self.failed else 4 if self.drift else 0
