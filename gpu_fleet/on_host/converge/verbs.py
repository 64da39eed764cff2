"""The verbs of this program."""

from __future__ import annotations

import contextlib
import os
import time
from typing import NamedTuple

from . import causes, state
from .difference import Differences
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
from .things import Things, things_of
from .undo import Undo, exists_for
from .wanted import Wanted


class Ended(Exception):
    """The run ends here with this exit code, after its result."""

    def __init__(self, code: int | None = None) -> None:
        super().__init__(code)
        self.code = code


class Known(NamedTuple):
    """A host as one run knows it. `probes`: why the probe of a part failed."""

    things: Things
    differences: Differences
    parts: Parts
    probes: dict[str, Failure]


class Run:
    """One run of the program. `lock`: released by the kernel with the process."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.report = Report(host.verb)
        self.disk = Disk()
        self.lock = Lock(host.state)
        self.metrics = bool(host.metrics)

    def perform(self) -> int:
        verbs = {"needs": self.needs, "plan": self.plan, "apply": self.apply, "check": self.check, "remove": self.remove}
        try:
            if self.host.verb in ("check", "remove"):
                self._leave_if_absent()
            elif self.host.verb == "apply":
                self._make_state()
            try:
                self.host = state.open_scratch(self.host)
                verbs[self.host.verb]()
            except (Failure, OSError) as error:
                self.report.part("host", "failed", failure=explained(error))  # the run cannot start
            return self._finish()
        except Ended as ended:
            return ended.code if ended.code is not None else self._finish()
        finally:
            state.tidy(self.host, self.lock.is_held and self.host.verb != "check")

    def _finish(self, code: int | None = None) -> int:
        if self.metrics and self.host.verb == "check":
            state.write_metrics(self.host, self.report.drift_items, self.report.failed, int(time.time()))
        self.disk.flush_changes()
        found = self.report.result()
        return found if code is None else code

    # --- the verbs --------------------------------------------------------------------------------------------------------------

    def needs(self) -> None:
        """For gpu-fleet-pull: the sha256 of each file that it has to fetch; what is wrong, apply reports."""
        try:
            parts, placed, settings = self._read()
            run_probes(self.host, parts, settings)
            manager = self._choose_manager(settings)
            wanted = Wanted(self.host, parts, settings, placed, manager)
            missing = Downloads(self.host, Files(self.host, self.disk, placed), placed).missing(wanted.parts)
        except (Failure, FatalProbe, OSError):
            raise Ended(0) from None
        for digest in missing:
            print(digest, flush=True)
        raise Ended(0)

    def plan(self) -> None:
        parts, placed, settings = self._read()
        known = self._look(parts, placed, settings)
        former = self._former(known, placed)
        for name in former:
            self.report.part(name, "would-change", known.differences.former(name).changes)
        for name, part in parts.items():
            if name in known.probes:
                self.report.part(name, "failed", failure=known.probes[name])
            elif name in known.things.wanted.names:
                try:
                    difference = known.differences.of(part)
                except Failure as failure:
                    self.report.part(name, "failed", failure=failure)
                    continue
                known.differences.changed |= difference.keys
                self.report.part(name, "would-change" if difference.changes else "unchanged", difference.changes)
            elif name not in former:
                self.report.part(name, "not-wanted")

    def apply(self) -> None:
        if not os.access(self.host.state, os.W_OK):
            why = causes.of_denied(self.host.state) or "choose a writable prefix"
            raise Failure("no-write", f"cannot write below {self.host.state}; {why}")
        read_manifest(f"{self.host.bundle}/manifest")
        self.lock.take("apply")
        state.clear_scratch(self.host)
        parts, placed, settings = self._read()
        known = self._look(parts, placed, settings)
        self._ask_for_files(known)
        state.record_bundle(self.host, self.disk, settings, placed)
        known.things.packages.settle()
        self._converge(known, parts["host"])
        if self.report.failed:
            say("nothing else was tried: all parts depend on what failed")
            return
        former = self._former(known, placed)
        for name in former:
            self._remove(known, name, parts)
        for name, part in parts.items():
            if name == "host":
                continue
            if name in known.probes:
                self.report.part(name, "failed", failure=known.probes[name])
            elif name in known.things.wanted.names:
                self._converge(known, part)
            elif name not in former:
                self.report.part(name, "not-wanted")
        Undo(self.host, self.disk, known.things.files, "host").end()
        known.parts.sweep()

    def check(self) -> None:
        try:
            self.lock.share()
        except Failure:
            self.metrics = False  # the previous result stays valid until that run is done
            raise
        self._restart_if_replaced()
        parts, placed, settings = self._read()
        refuse_others(self.host, settings)
        known = self._recall(parts, placed, settings)
        former = self._former(known, placed)
        for name in former:
            self.report.difference(name, known.differences.former(name).changes)
        for name, part in parts.items():
            if name in known.things.wanted.names:
                try:
                    changes = known.differences.of(part).changes
                except Failure as failure:
                    self.report.part(name, "failed", failure=failure)
                    continue
                if name == "host" and exists_for(self.host, "host"):
                    changes.append("the last apply did not finish; the next one does")
                self.report.difference(name, changes)
            elif name not in former:
                self.report.part(name, "not-wanted")

    def remove(self) -> None:
        parts = read_manifest(f"{self.host.bundle}/manifest")
        refuse_others(self.host, None)  # before the lock: there is no need to wait for it on another stack's host
        self.lock.take("remove")
        self._leave_if_absent()  # another removal may have ended meanwhile
        parts, placed, settings = self._read()
        refuse_others(self.host, settings)
        if not placed.exists or not placed.all():
            raise Failure(
                "damaged",
                f"{self.host.state}/placed, the list of what was placed on this host, is missing or empty, so it is unknown "
                "what to remove; run `up`, or gpu-fleet-pull on a host in pull mode, which writes it again; then remove the "
                "host",
            )
        known = self._recall(parts, placed, settings)
        known.things.packages.settle()
        known.things.wanted.things.clear()
        known.differences.obsolete_why = "removed"
        # In reverse order; `host`, which all others depend on, is the first part.
        for name in reversed(placed.parts()):
            self._remove(known, name, parts, packages=True)
        if self.report.failed:
            return
        known.parts.sweep()
        known.things.foreign.restore_all()
        state.leave(self.host, self.disk)

    # --- shared by the verbs ----------------------------------------------------------------------------------------------------

    def _leave_if_absent(self) -> None:
        if state.is_absent(self.host):
            emit({"event": "absent"})
            say("gpu-fleet is not installed on this host")
            raise Ended(3)

    def _ask_for_files(self, known: Known) -> None:
        """Ends the run before it changes anything where the controller has to send files along, and may not have known so."""
        if not self.host.envelope or self.host.artifacts or os.path.isdir(f"{self.host.envelope}/artifacts"):
            return
        try:
            missing = known.things.downloads.missing(known.things.wanted.parts)
        except (Failure, OSError):  # said by the part that it is about
            return
        if missing:
            emit({"event": "needs", "files": missing})
            raise Ended(0)

    def _make_state(self) -> None:
        with contextlib.suppress(OSError):  # said once the manifest was read
            os.makedirs(self.host.state, exist_ok=True)

    def _restart_if_replaced(self) -> None:
        """While this check waited for the lock, an apply may have replaced the bundle."""
        if os.path.isfile(f"{self.host.bundle}/manifest"):
            return
        host = self.host
        state.close_scratch(host.scratch)
        arguments = ["--prefix", host.prefix, "--stack", host.stack, "--instance", host.instance, "--metrics", host.metrics]
        os.execvp("sh", ["sh", f"{host.state}/current/converge", host.verb, *arguments])  # noqa: S606

    def _read(self) -> tuple[dict[str, Part], Placed, Settings]:
        parts = read_manifest(f"{self.host.bundle}/manifest")
        placed = Placed(self.host.state, self.disk)
        settings = Settings(self.host)
        self.report.digest, self.report.settings_digest = settings.digest, settings.settings_digest
        self.host = self.host._replace(stack=self.host.stack or settings.get("GPU_FLEET_STACK") or "")
        return parts, placed, settings

    def _look(self, parts: dict[str, Part], placed: Placed, settings: Settings) -> Known:
        """At the host; a fatal probe ends the run before any change."""
        refuse_others(self.host, settings)
        report_rename(self.host, settings)
        try:
            probes = run_probes(self.host, parts, settings)
        except FatalProbe as fatal:
            self.report.part(fatal.part, "failed", failure=fatal.failure)
            raise Ended(self._finish(5)) from fatal
        return self._recall(parts, placed, settings, probes)

    def _recall(
        self, parts: dict[str, Part], placed: Placed, settings: Settings, probes: dict[str, Failure] | None = None
    ) -> Known:
        self.report.facts(settings.facts_by_name())
        things = things_of(self.host, self.disk, parts, placed, settings, self._choose_manager(settings))
        differences = Differences(things)
        return Known(things, differences, Parts(things, differences), probes or {})

    def _choose_manager(self, settings: Settings) -> str:
        manager = settings.get("GPU_FLEET_SERVICE_MANAGER") or "auto"
        if manager == "auto":
            manager = "systemd" if not self.host.prefix and os.path.isdir("/run/systemd/system") else "supervisor"
        elif manager not in ("systemd", "supervisor"):
            raise Failure("unsupported", f"GPU_FLEET_SERVICE_MANAGER is {manager}, expected systemd, supervisor or auto")
        if manager == "systemd" and self.host.verb in ("plan", "apply"):
            from .systemd import refuse_too_old

            refuse_too_old()
        return manager

    def _former(self, known: Known, placed: Placed) -> list[str]:
        """Parts with something on this host that is no longer wanted, the last first: removing it may need an earlier one."""
        names = {record.part: None for record in placed.all() if record.kind != "package"}
        return [name for name in reversed(list(names)) if name not in known.things.wanted.names]

    def _converge(self, known: Known, part: Part) -> None:
        changes: list[str] = []
        try:
            known.parts.converge(part, changes)
        except (Failure, OSError) as error:
            self.report.part(part.name, "failed", changes, failure=explained(error))
        else:
            self.report.part(part.name, "changed" if changes else "unchanged", changes)

    def _remove(self, known: Known, name: str, parts: dict[str, Part], packages: bool = False) -> None:
        changes: list[str] = []
        try:
            known.parts.remove(name, parts, changes)
            if packages:
                changes += known.things.packages.drop(name, parts.get(name, Part(name)))
        except (Failure, OSError) as error:
            self.report.part(name, "failed", changes, failure=explained(error))
        else:
            self.report.part(name, "removed", changes)
