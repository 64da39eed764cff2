"""Probes (on_host/probe/): they look at the host before anything is changed, and give facts."""

from __future__ import annotations

import os
import signal
from typing import Mapping, Sequence

from ..probe import Outcome, outcome
from .errors import Failure
from .events import say
from .host import Host
from .manifest import Part
from .settings import Settings

PROBE_TIMEOUT_S = 120  # nvidia-smi takes about a second per GPU when persistence mode is off
_CAUSES = {10: "no-driver", 11: "gpu-count", 12: "unsupported", 13: "download", 14: "old-driver"}


class FatalProbe(Failure):
    """`part`: whose probe it is."""

    part = ""


def run_probes(host: Host, parts: dict[str, Part], settings: Settings) -> dict[str, Failure]:
    """Adds the facts to the settings. Returns why a probe failed, by part, to be reported when that part is applied."""
    failed: dict[str, Failure] = {}
    for part in parts.values():
        for module, is_fatal in part.probes:
            if not settings.allows(part, known=True):
                continue
            say(f"{part.name}: probing the host")
            found = ask(host, module, (), settings.values(), PROBE_TIMEOUT_S)
            if found.code == 0:
                settings.facts.extend(f"{name}={value}" for name, value in found.facts.items())
                settings.merge()
                continue
            reason = "\n".join(line for line in found.reason.split("\n") if line.strip(" "))
            failure = FatalProbe(_CAUSES.get(found.code, "internal"), reason or f"the probe {module} says no reason")
            failure.part = part.name
            if is_fatal:
                raise failure
            failed[part.name] = Failure(failure.code, failure.message.replace("\n", " "))
    return failed


def ask(host: Host, module: str, arguments: Sequence[str], settings: Mapping[str, str], within_s: int) -> Outcome:
    """What a probe finds, within that time."""
    before = signal.signal(signal.SIGALRM, _time_out)
    signal.alarm(within_s)
    try:
        return outcome(module, arguments, {**os.environ, **settings, "TMPDIR": host.scratch})
    except _TimeOut:
        return Outcome(1, reason=f"the probe {module} timed out after {within_s} seconds")
    except Exception as error:
        return Outcome(1, reason=f"the probe {module} failed: {type(error).__name__}: {error}")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


class _TimeOut(BaseException):
    """No Exception: a probe may catch those."""


def _time_out(*_: object) -> None:
    raise _TimeOut
