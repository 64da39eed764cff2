"""gpu-fleet-pull: keeps a self-provisioning host at the newest publication of its stack, and rolls back to the last one that
worked when a new one does not come up. Started by systemd's timer, or by its own loop under supervisor, which has no timers."""

from __future__ import annotations

import os
import random
import subprocess
import time
from typing import Callable, NamedTuple

from ..converge import proxies
from ..converge.errors import Failure, explained
from ..converge.events import say
from ..converge.programs import end_on_signals
from .envelope import run_converge
from .index import Trust, read_index
from .kept import Kept
from .origin import Origin
from .update import PROGRAM, Update

_USAGE = """\
usage: gpu-fleet-pull              fetch, verify and apply the newest publication; repair what was changed by hand
       gpu-fleet-pull --now        the same, without waiting for this host's wave
       gpu-fleet-pull --check      fetch and verify only
       gpu-fleet-pull --status     show what runs here, and the result of the last run
       gpu-fleet-pull --remove     remove everything that was placed here"""
_PAUSE_S = 900


class Pulling(NamedTuple):
    """A host, and how it was installed."""

    kept: Kept
    origin: Origin
    trust: Trust

    @classmethod
    def of(cls, kept: Kept) -> Pulling:
        settings = kept.settings
        keys = kept.line("pull/keys") or settings.get("GPU_FLEET_PULL_KEY", "")  # those of the installation
        trust = Trust(settings.get("GPU_FLEET_PULL_STACK", ""), keys.split(","), kept.seen_version)
        return cls(kept, Origin(settings.get("GPU_FLEET_PULL_FROM", "")), trust)

    def update(self, is_now: bool = False) -> int:
        os.makedirs(self.kept.directory, 0o700, exist_ok=True)
        with self.kept.lock(1):  # the other run reports its own result
            try:
                self.kept.recover()
                with self.kept.work() as work:
                    return Update(self.kept, self.origin, self.trust, work, is_now).perform()
            except (Failure, OSError) as error:
                return self.kept.report(False, explained(error).message)

    def check(self) -> int:
        with self.kept.work() as work:
            index = read_index(self.origin, self.trust, work)
        say(f"newest: bundle {index.bundle[:12]}, version {index.version}; here: bundle {self.kept.digest[:12]}")
        return 0

    def status(self) -> int:
        instance, stack = self.kept.settings.get("GPU_FLEET_INSTANCE", ""), self.trust.stack
        print(f"instance   {instance}\nstack      {stack}\norigin     {self.origin.url}\nbundle     {self.kept.digest}")
        print(f"published  version {self.trust.floor}")
        when, how, what = [*self.kept.text("pull/status").split("\n"), "", ""][:3]
        print(f"last run   {when}, {how}: {what}" if when else "last run   none has finished yet")
        return 0 if how == "ok" else 1

    def remove(self) -> int:
        if not self.kept.exists:
            return self._remove()
        with self.kept.lock(60):
            return self._remove()

    def _remove(self) -> int:
        with self.kept.work():
            done = run_converge(f"{self.kept.state}/current", "remove", self.kept.prefix)
        if not done.problem:
            say("everything was removed")
            return 0
        restore = "" if done.has_result else "; run gpu-fleet-pull once to restore it"
        say(f"the removal did not finish: {done.problem}{restore}")
        return done.code


def _loop(prefix: str) -> int:
    """Each run gets its own session: it may restart this program, or supervisord itself."""
    while True:
        time.sleep(_PAUSE_S + random.randrange(300))  # noqa: S311
        environment = {"PATH": os.environ["PATH"], "HOME": "/"}
        # It goes on when this program is ended.
        subprocess.Popen([prefix + PROGRAM], env=environment, stdin=subprocess.DEVNULL, start_new_session=True).wait()


_VERBS: dict[tuple[str, ...], Callable[[Pulling], int]] = {
    (): Pulling.update,
    ("--now",): lambda pulling: pulling.update(is_now=True),
    ("--check",): Pulling.check,
    ("--status",): Pulling.status,
    ("--remove",): Pulling.remove,
}


def main(arguments: list[str]) -> int:
    """The first: the directory that everything is below; empty: the whole host."""
    prefix, *options = arguments
    end_on_signals()
    if options == ["--loop"]:
        return _loop(prefix)
    verb = _VERBS.get(tuple(options))
    if verb is None:
        say(_USAGE)
        return 2
    kept = Kept(prefix)
    if not os.path.isfile(f"{kept.state}/settings"):
        say("gpu-fleet is not installed on this host")
        return 3
    if not os.access(f"{kept.state}/settings", os.W_OK):
        say("only root can do this; run it as root (sudo)")
        return 1
    proxies.find(prefix)
    try:
        return verb(Pulling.of(kept))
    except (Failure, OSError) as error:
        say(explained(error).message)
        return 1
