"""Staged rollout: a host of a later wave is held back once too many hosts of the earlier waves have failed.

Only the decision is made here. The order comes from the program, which registers a wave once the previous one is done
(components/fleet/fleet.py), so nothing here waits for another host and no `--parallel` value can deadlock a run. Hosts without
changes are never called and count as successful. Previews, and deletions of hosts that leave the stack, are never held back.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from gpu_fleet.provider.host import HostError


@dataclass(frozen=True, kw_only=True)
class RolloutRules:
    """`has_canary`: no host of the first wave may fail. `max_failures`: how many hosts of all other waves together may fail.
    `pause_s`: between the last changed host of a wave and the first of the next."""

    has_canary: bool = False
    max_failures: int = 0
    pause_s: float = 0.0


class Rollout:
    """The outcome of one run's hosts, by wave."""

    def __init__(self, rules: RolloutRules):
        self._rules = rules
        self._waves: dict[str, int] = {}
        self._failed: dict[str, str] = {}  # host to cause, in the order of failure
        self._worked_until: dict[int, float] = {}  # wave to the end of its last host, on the monotonic clock

    def assign(self, host: str, wave: int) -> None:
        self._waves[host] = wave

    @contextlib.asynccontextmanager
    async def turn(self, host: str, progress: Callable[[str], None]) -> AsyncIterator[None]:
        """Wraps the work on a host. Raises HostError when the host is held back; any other exception inside counts as its
        failure."""
        if (wave := self._waves.get(host)) is None:
            yield
            return
        self.check_not_held_back(host)
        await self._pause(wave, progress)
        self.check_not_held_back(host)
        try:
            yield
        except Exception as error:
            self._failed[host] = str(error).splitlines()[0].removeprefix(f"{host}: ")
            raise
        finally:
            self._worked_until[wave] = time.monotonic()

    def check_not_held_back(self, host: str) -> None:
        """Raises HostError when too many hosts of earlier waves failed."""
        if (wave := self._waves.get(host)) is None:
            return
        failed = {name: cause for name, cause in self._failed.items() if self._waves[name] < wave}
        if not failed:
            return
        canary = next((name for name in failed if self._rules.has_canary and self._waves[name] == 0), None)
        if canary:
            raise HostError("held-back", f"canary {canary} failed: {failed[canary]}")
        if len(failed) > self._rules.max_failures:
            first, cause = next(iter(failed.items()))
            count = "1 host" if len(failed) == 1 else f"{len(failed)} hosts"
            raise HostError(
                "held-back", f"{count} before it failed, maxFailures is {self._rules.max_failures}; first {first}: {cause}"
            )

    async def _pause(self, wave: int, progress: Callable[[str], None]) -> None:
        ends = [at for earlier, at in self._worked_until.items() if earlier < wave]
        left_s = max(ends) + self._rules.pause_s - time.monotonic() if ends else 0
        if left_s > 0:
            progress(f"wave {wave + 1} begins in {left_s:.0f} s")
            await asyncio.sleep(left_s)
