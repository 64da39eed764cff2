"""One run of gpu-fleet-pull: the newest publication, or what came up last where that is not taken."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from typing import NamedTuple

from ..converge.disk import has_content
from ..converge.errors import Failure, attempt
from ..converge.programs import read_or_empty, run
from ..converge.records import parse
from .envelope import Envelope
from .index import Index, Trust, at_time, read_index
from .kept import Kept, settings_of, settings_text
from .origin import Origin, Refused

PROGRAM = "/opt/gpu-fleet/bin/gpu-fleet-pull"


class Update(NamedTuple):
    """`work`: a directory for temporary files. `is_now`: without waiting for this host's turn."""

    kept: Kept
    origin: Origin
    trust: Trust
    work: str
    is_now: bool

    def perform(self) -> int:
        """Returns the exit code."""
        try:
            index = read_index(self.origin, self.trust, self.work)
            self.kept.remember(index)
            newest = self._prepare(index)
            wait = self._wait(index, newest)
            if not wait:
                newest.get_bundle(index)
        except Failure as failure:
            return self._stay(failure.message)
        return self._stay_until(wait) if wait else self._apply(index, newest)

    def _prepare(self, index: Index) -> Envelope:
        """The newest publication's envelope, but for its bundle. Settings given on this host are kept; the rest follows the
        stack, whose name has its datacenter and cluster."""
        if self.kept.refuses(index.version):
            raise Refused(
                f"the newest publication (bundle {index.bundle[:12]}) did not come up on this host and was rolled back; it is "
                "retried after a day, a newer publication at once",
            )
        before = self.kept.settings
        given = before.get("GPU_FLEET_PULL_GIVEN", "").split()
        settings = {**index.settings, **{name: value for name, value in before.items() if name in given}}
        settings["GPU_FLEET_STACK"] = f"{settings.get('GPU_FLEET_DATACENTER', '')}/{settings.get('GPU_FLEET_CLUSTER', '')}"
        newest = self._envelope("newest")
        secrets = f"{self.kept.good}/secrets"
        if not os.path.isdir(secrets):
            secrets = f"{self.kept.prefix}/etc/gpu-fleet/secrets"
        with attempt(f"cannot write below {self.kept.state}"):
            os.mkdir(newest.path)
            with open(f"{newest.path}/settings", "wb") as file:
                file.write(settings_text(settings))
            if os.path.isdir(secrets):
                shutil.copytree(secrets, f"{newest.path}/secrets")
            else:
                os.mkdir(f"{newest.path}/secrets")
        return newest

    def _wait(self, index: Index, newest: Envelope) -> str:
        """Why this host does not take it yet; empty: it does. Its place, 0 to 9999, is derived from its name."""
        is_here = self._is_good(index, newest)
        if is_here or self.is_now or not os.path.isdir(self.kept.good):
            return ""
        if index.is_stopped:
            return f"bundle {index.bundle[:12]} is published, and its rollout was stopped"
        name = f"{self.trust.stack} {self.kept.settings.get('GPU_FLEET_INSTANCE', '')}"
        turn = index.turn(int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) % 10_000)
        if turn <= time.time():
            return ""
        return f"bundle {index.bundle[:12]} is published, and this host's turn is at {at_time(turn)}"

    def _apply(self, index: Index, newest: Envelope) -> int:
        bundle = index.bundle[:12]
        is_new = not self._is_good(index, newest)
        stack = settings_of(f"{newest.path}/settings")["GPU_FLEET_STACK"]
        try:
            if is_new:
                self._keep_old_programs(newest)
            changed = newest.apply(stack)
            if is_new:
                self._can_pull()
        except Failure as failure:
            if is_new and os.path.isdir(self.kept.good) and self._is_applied(index, newest):
                self.kept.refuse(index.version)
                return self._stay(f"bundle {bundle} did not come up ({failure.message})")
            return self.kept.report(False, f"bundle {bundle}: {failure.message}")
        self.kept.forgive()
        self.kept.keep_good(newest.path, index.version)
        if is_new:
            return self.kept.report(True, f"bundle {bundle} came up; {changed} parts changed")
        return self.kept.report(True, f"bundle {bundle}: {f'{changed} parts repaired' if changed else 'nothing to do'}")

    def _stay(self, why: str) -> int:
        """Keeps, or restores, what came up last; the run has failed nevertheless."""
        if os.path.isdir(self.kept.good):
            bundle = self.kept.good_bundle
            try:
                self._repair()
                why = f"{why}; bundle {bundle[:12]} is running"
            except Failure as failure:
                why = f"{why}; the previous bundle does not come up either ({failure.message})"
        return self.kept.report(False, why)

    def _stay_until(self, why: str) -> int:
        """Meanwhile, repairs what runs here."""
        try:
            self._repair()
        except Failure as failure:
            return self.kept.report(False, f"{why}; the previous bundle does not come up ({failure.message})")
        return self.kept.report(True, f"{why}; bundle {self.kept.digest[:12]} is running")

    def _repair(self) -> None:
        good = self._envelope("good")
        with attempt(f"cannot write below {self.kept.state}"):
            shutil.copytree(self.kept.good, good.path)
        good.apply(settings_of(f"{good.path}/settings").get("GPU_FLEET_STACK", ""), offline=True)

    def _envelope(self, name: str) -> Envelope:
        return Envelope(f"{self.work}/{name}", self.kept, self.origin, self.kept.line("stack"))

    def _is_good(self, index: Index, newest: Envelope) -> bool:
        return self.kept.good_bundle == index.bundle and _is_same(newest.path, self.kept.good)

    def _is_applied(self, index: Index, newest: Envelope) -> bool:
        """Did converge get as far as recording it?"""
        return self.kept.digest == index.bundle and _is_same(newest.path, self.kept.state)

    def _keep_old_programs(self, newest: Envelope) -> None:
        """A program from the origin that will be replaced may no longer be published when a rollback needs it. A hard link costs
        no space. Programs that stay get no link: it would change their ctime, and converge would read them whole again."""
        if not os.path.isdir(self.kept.good):
            return
        artifacts = f"{self.kept.good}/artifacts"
        os.makedirs(artifacts, exist_ok=True)
        needed = {field for line in newest.manifest for field in line}
        for record in parse(read_or_empty(f"{self.kept.state}/placed")):
            sha256, _, member = record.b.partition(":")
            if record.kind == "bin" and member == "-" and sha256 not in needed:
                _link(self.kept.prefix + record.key, f"{artifacts}/{sha256}")

    def _can_pull(self) -> None:
        """A publication whose gpu-fleet-pull cannot pull would be the last one that this host applies."""
        done = run(self.kept.prefix + PROGRAM, "--check", joined=True)
        if not done.ok:
            said = done.stdout.strip().split("\n")[-1]
            raise Refused(f"its gpu-fleet-pull does not work: {said}")


def _is_same(one: str, other: str) -> bool:
    with open(f"{one}/settings", "rb") as file:
        return has_content(f"{other}/settings", file.read())


def _link(source: str, target: str) -> None:
    if os.path.isfile(source) and not os.path.exists(target):
        with contextlib.suppress(OSError):  # another file system: then a rollback fetches it
            os.link(source, target)
