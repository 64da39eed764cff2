"""Probes: programs of the bundle that look at the host before anything is changed and print facts."""

from __future__ import annotations

import os
import re
import signal
from typing import Mapping, Sequence

from .errors import Failure
from .events import say
from .host import Host
from .manifest import Part
from .programs import TIMED_OUT, Done, read_or_empty, run
from .settings import Settings, is_setting

PROBE_TIMEOUT_S = 120  # nvidia-smi takes about a second per GPU when persistence mode is off
# A script that only starts a module of on_host/probe/, which is a part of this program.
_STARTS_MODULE = re.compile(r'^exec sh "\$\{0%/\*\}/probe" (\w+) "\$@"$', re.MULTILINE)
_CAUSES = {10: "no-driver", 11: "gpu-count", 12: "unsupported", 13: "download", 14: "old-driver"}


class FatalProbe(Exception):
    def __init__(self, part: str, failure: Failure) -> None:
        super().__init__(part)
        self.part = part
        self.failure = failure


def run_probes(host: Host, parts: dict[str, Part], settings: Settings) -> dict[str, Failure]:
    """Adds the facts to the settings. Returns why a probe failed, by part, to be reported when that part is applied."""
    failed: dict[str, Failure] = {}
    for part in parts.values():
        for path, is_fatal in part.probes:
            if not settings.allows(part, known=True):
                continue
            try:
                _probe(host, part.name, path, settings)
            except Failure as failure:
                if is_fatal:
                    raise FatalProbe(part.name, failure) from failure
                failed[part.name] = Failure(failure.code, failure.message.replace("\n", " "))
    return failed


def _probe(host: Host, part: str, path: str, settings: Settings) -> None:
    say(f"{part}: probing the host")
    done = ask(host, path, (), settings.values(), PROBE_TIMEOUT_S)
    said = "\n".join(line for line in done.stderr.split("\n") if line.strip(" "))
    if done.code == TIMED_OUT:
        raise Failure("internal", f"probe {path} timed out after {PROBE_TIMEOUT_S} seconds")
    if not done.ok:
        raise Failure(_CAUSES.get(done.code, "internal"), said or f"probe {path} exited with {done.code} and printed no reason")
    lines = done.stdout.split("\n")
    if not lines[-1]:
        lines.pop()
    for line in lines:
        if not is_setting(line):
            raise Failure("internal", f"{path} printed a line that is not NAME=value: {line}")
    settings.facts.extend(lines)
    settings.merge()


def ask(host: Host, path: str, arguments: Sequence[str], settings: Mapping[str, str], within_s: int) -> Done:
    """What a script of the bundle prints. A module runs in this process: another Python would take longer than most probes."""
    script = f"{host.bundle}/files{path}"
    environment = {**os.environ, **settings, "TMPDIR": host.scratch}
    module = _STARTS_MODULE.search(read_or_empty(script))
    if module is None:
        return run("sh", script, *arguments, within_s=within_s, environment=environment)
    from ..probe import outcome

    before = signal.signal(signal.SIGALRM, _time_out)
    signal.alarm(within_s)
    try:
        found = outcome(module[1], arguments, environment)
    except _TimeOut:
        return Done(TIMED_OUT, "", "")
    except Exception as error:
        return Done(1, "", f"{type(error).__name__}: {error}")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return Done(found.code, found.printed, found.reason)


class _TimeOut(BaseException):
    """No Exception: a probe may catch those."""


def _time_out(*_: object) -> None:
    raise _TimeOut
