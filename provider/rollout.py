"""Staged rollout: a host of a later wave is left alone once too many hosts of the waves before it failed.

Judged here, ordered elsewhere: the program registers a wave only when the one before it is done (components/fleet/fleet.py). So
nothing here waits for another host, and no number of `--parallel` can make a run wait for ever. Hosts that do not change are
never called, and count as good; a preview and a deletion ask nobody.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from provider.host import HostError


@dataclass(frozen=True, kw_only=True)
class RolloutRules:
    """`has_canary`: the first wave is one where no host may fail. `max_failures`: of the other waves together. `pause_s`: between
    the last host of a wave that was changed and the first of the next."""

    has_canary: bool = False
    max_failures: int = 0
    pause_s: float = 0.0


class Rollout:
    """What became of the hosts of one run, by wave."""

    def __init__(self, rules: RolloutRules):
        self._rules = rules
        self._waves: dict[str, int] = {}
        self._failed: dict[str, str] = {}  # host to its cause, in the order they failed
        self._worked_until: dict[int, float] = {}  # by wave: when its last host was done, of the monotonic clock

    def place(self, host: str, wave: int) -> None:
        self._waves[host] = wave

    @contextlib.asynccontextmanager
    async def turn(self, host: str, tell: Callable[[str], None]) -> AsyncIterator[None]:
        """Around the work on a host. Raises HostError where it is held back; what else is raised inside is its failure."""
        if (wave := self._waves.get(host)) is None:
            yield
            return
        self.judge(host)
        await self._pause(wave, tell)
        self.judge(host)
        try:
            yield
        except Exception as error:
            self._failed[host] = str(error).splitlines()[0].removeprefix(f"{host}: ")
            raise
        finally:
            self._worked_until[wave] = time.monotonic()

    def judge(self, host: str) -> None:
        """Raises HostError when the waves before the host's own went wrong."""
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
            many = "1 host" if len(failed) == 1 else f"{len(failed)} hosts"
            raise HostError(
                "held-back", f"{many} before it failed, maxFailures is {self._rules.max_failures}; first {first}: {cause}"
            )

    async def _pause(self, wave: int, tell: Callable[[str], None]) -> None:
        ends = [at for earlier, at in self._worked_until.items() if earlier < wave]
        left_s = max(ends) + self._rules.pause_s - time.monotonic() if ends else 0
        if left_s > 0:
            tell(f"wave {wave + 1} begins in {left_s:.0f} s")
            await asyncio.sleep(left_s)
