"""The verbs of this program."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Iterator

from . import causes, state
from .difference import Difference, Differences
from .disk import Disk
from .downloads import Downloads
from .errors import Failure, explained
from .events import Report, emit, say
from .facts import FatalProbe, run_probes
from .files import Files
from .host import Host
from .identity import refuse_others, report_rename
from .lock import Lock
from .manifest import Part, read_manifest
from .parts import Parts
from .records import Placed
from .settings import Settings
from .things import Things
from .undo import Undo, exists_for
from .wanted import Wanted


class Ended(Exception):
    """The run ends here with this exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Run:
    """One run of the program. `lock`: released by the kernel with the process. `_read` adds what the bundle, the envelope and our
    records say; `_look` what is on the host, and `probes`: why the probe of a part failed."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.report = Report(host.verb)
        self.disk = Disk()
        self.lock = Lock(host.state)
        self.metrics = bool(host.metrics)
        self.probes: dict[str, Failure] = {}

    def perform(self) -> int:
        verbs = {"needs": self.needs, "plan": self.plan, "apply": self.apply, "check": self.check, "remove": self.remove}
        try:
            if self.host.verb in ("check", "remove"):
                self._leave_if_absent()
            elif self.host.verb == "apply":
                with contextlib.suppress(OSError):  # said once the lock is to be taken
                    os.makedirs(self.host.state, exist_ok=True)
            try:
                self.host = state.open_scratch(self.host)
                verbs[self.host.verb]()
            except (Failure, OSError) as error:
                self.report.part("host", "failed", failure=explained(error))  # the run cannot start
            return self._finish()
        except Ended as ended:
            return ended.code
        finally:
            state.tidy(self.host, self.lock.is_held and self.host.verb != "check")

    def _finish(self) -> int:
        if self.metrics and self.host.verb == "check":
            state.write_metrics(self.host, self.report.drift_items, self.report.failed, int(time.time()))
        self.disk.flush_changes()
        return self.report.result()

    # --- the verbs --------------------------------------------------------------------------------------------------------------

    def needs(self) -> None:
        """For gpu-fleet-pull: the sha256 of each file that it has to fetch; what is wrong, apply reports."""
        try:
            self._read()
            run_probes(self.host, self.parts, self.settings)
            wanted = Wanted(self.host, self.parts, self.settings, self.placed, self.manager)
            missing = Downloads(self.host, Files(self.host, self.disk, self.placed), self.placed).missing(wanted.parts)
        except (Failure, OSError):
            raise Ended(0) from None
        for digest in missing:
            print(digest, flush=True)
        raise Ended(0)

    def plan(self) -> None:
        self._read()
        self._look()
        former = self._former()
        for name in former:
            self.report.part(name, "would-change", self.differences.former(name).changes)
        for part in self._wanted(former):
            difference = self._difference(part)
            if difference:
                self.differences.changed |= difference.keys
                self.report.part(part.name, "would-change" if difference.changes else "unchanged", difference.changes)

    def apply(self) -> None:
        if not os.access(self.host.state, os.W_OK):
            why = causes.of_denied(self.host.state) or "choose a writable prefix"
            raise Failure("no-write", f"cannot write below {self.host.state}; {why}")
        self.lock.take("apply")
        state.clear_scratch(self.host)
        self._read()
        self._look()
        self._ask_for_files()
        state.record_bundle(self.host, self.disk, self.settings, self.placed)
        self.things.packages.settle()
        self._converge(self.parts["host"])
        if self.report.failed:
            say("nothing else was tried: all parts depend on what failed")
            return
        former = self._former()
        for name in former:
            self._remove(name)
        for part in self._wanted(former):
            if part.name != "host":
                self._converge(part)
        Undo(self.host, self.disk, self.things.files, "host").end()
        self.worker.sweep()

    def check(self) -> None:
        try:
            self.lock.share()
        except Failure:
            self.metrics = False  # the previous result stays valid until that run is done
            raise
        self._restart_if_replaced()
        self._read()
        self._look()
        former = self._former()
        for name in former:
            self.report.difference(name, self.differences.former(name).changes)
        for part in self._wanted(former):
            difference = self._difference(part)
            if difference:
                unfinished = part.name == "host" and exists_for(self.host, "host")
                more = ["the last apply did not finish; the next one does"] if unfinished else []
                self.report.difference(part.name, difference.changes + more)

    def remove(self) -> None:
        refuse_others(self.host, None)  # before the lock: there is no need to wait for it on another stack's host
        self.lock.take("remove")
        self._leave_if_absent()  # another removal may have ended meanwhile
        self._read()
        if not self.placed.exists or not self.placed.all():
            raise Failure(
                "damaged",
                f"{self.host.state}/placed, the list of what was placed on this host, is missing or empty, so it is unknown "
                "what to remove; run `up`, or gpu-fleet-pull on a host in pull mode, which writes it again; then remove the "
                "host",
            )
        self._look()
        self.things.packages.settle()
        self.things.wanted.things.clear()
        self.differences.obsolete_why = "removed"
        # In reverse order; `host`, which all others depend on, is the first part.
        for name in reversed(self.placed.parts()):
            self._remove(name, packages=True)
        if self.report.failed:
            return
        self.worker.sweep()
        self.things.foreign.restore_all()
        state.leave(self.host, self.disk)

    # --- shared by the verbs ----------------------------------------------------------------------------------------------------

    def _leave_if_absent(self) -> None:
        if state.is_absent(self.host):
            emit({"event": "absent"})
            say("gpu-fleet is not installed on this host")
            raise Ended(3)

    def _restart_if_replaced(self) -> None:
        """While this check waited for the lock, an apply may have replaced the bundle."""
        if os.path.isfile(f"{self.host.bundle}/manifest"):
            return
        host = self.host
        state.close_scratch(host.scratch)
        arguments = ["--prefix", host.prefix, "--stack", host.stack, "--instance", host.instance, "--metrics", host.metrics]
        os.execvp("sh", ["sh", f"{host.state}/current/converge", host.verb, *arguments])  # noqa: S606

    def _read(self) -> None:
        self.settings = Settings(self.host)
        self.manager = self._choose_manager()
        self.parts = read_manifest(self.host.bundle, self.manager, self.host.arch)
        self.placed = Placed(self.host.state, self.disk)
        self.report.digest, self.report.settings_digest = self.settings.digest, self.settings.settings_digest
        self.host = self.host._replace(stack=self.host.stack or self.settings.get("GPU_FLEET_STACK") or "")

    def _choose_manager(self) -> str:
        manager = self.settings.get("GPU_FLEET_SERVICE_MANAGER") or "auto"
        if manager == "auto":
            return "systemd" if not self.host.prefix and os.path.isdir("/run/systemd/system") else "supervisor"
        if manager not in ("systemd", "supervisor"):
            raise Failure("unsupported", f"GPU_FLEET_SERVICE_MANAGER is {manager}, expected systemd, supervisor or auto")
        return manager

    def _look(self) -> None:
        """A fatal probe ends the run before any change."""
        refuse_others(self.host, self.settings)
        if self.host.verb in ("plan", "apply"):
            report_rename(self.host, self.settings)
            try:
                self.probes = run_probes(self.host, self.parts, self.settings)
            except FatalProbe as fatal:
                self.report.part(fatal.part, "failed", failure=fatal)
                self._finish()
                raise Ended(5) from fatal
        self.report.facts(self.settings.facts_by_name())
        self.things = Things(self.host, self.disk, self.parts, self.placed, self.settings, self.manager)
        self.differences = Differences(self.things)
        self.worker = Parts(self.things, self.differences)

    def _ask_for_files(self) -> None:
        """Ends the run before it changes anything where the controller has to send files along, and may not have known so."""
        if not self.host.envelope or self.host.artifacts or os.path.isdir(f"{self.host.envelope}/artifacts"):
            return
        try:
            missing = self.things.downloads.missing(self.things.wanted.parts)
        except (Failure, OSError):  # said by the part that it is about
            return
        if missing:
            emit({"event": "needs", "files": missing})
            raise Ended(0)

    def _former(self) -> list[str]:
        """Parts with something on this host that is no longer wanted, the last first: removing it may need an earlier one."""
        names = {record.part: None for record in self.placed.all() if record.kind != "package"}
        return [name for name in reversed(list(names)) if name not in self.things.wanted.names]

    def _wanted(self, former: list[str]) -> Iterator[Part]:
        """Those whose probe did not fail; reports the others."""
        for name, part in self.parts.items():
            if name in self.probes:
                self.report.part(name, "failed", failure=self.probes[name])
            elif name in self.things.wanted.names:
                yield part
            elif name not in former:
                self.report.part(name, "not-wanted")

    def _difference(self, part: Part) -> Difference | None:
        """None where it cannot be said, which is reported."""
        try:
            return self.differences.of(part)
        except Failure as failure:
            self.report.part(part.name, "failed", failure=failure)
            return None

    def _converge(self, part: Part) -> None:
        changes: list[str] = []
        with self._reported(part.name, changes):
            self.worker.converge(part, changes)
            self.report.part(part.name, "changed" if changes else "unchanged", changes)

    def _remove(self, name: str, packages: bool = False) -> None:
        changes: list[str] = []
        part = self.parts.get(name, Part(name))
        with self._reported(name, changes):
            self.worker.remove(part, changes)
            if packages:
                changes += self.things.packages.drop(part)
            self.report.part(name, "removed", changes)

    @contextlib.contextmanager
    def _reported(self, name: str, changes: list[str]) -> Iterator[None]:
        """What fails in it fails the part alone."""
        try:
            yield
        except (Failure, OSError) as error:
            self.report.part(name, "failed", changes, failure=explained(error))
