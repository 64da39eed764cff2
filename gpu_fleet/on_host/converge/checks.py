"""Does a part work? Its checks, and which process uses the port when it does not."""

from __future__ import annotations

import os
import re
import time
from typing import AbstractSet

from ..page import get
from . import ports
from .errors import Failure
from .events import say
from .host import Host
from .manifest import Check, Part, Unit
from .processes import is_of_prefix
from .programs import pause, read_or_empty, until
from .services import Services, Waiting
from .settings import Settings

_ANSWER_S = 5
_SAID = re.compile("level=info", re.IGNORECASE)
_LIBRARY = re.compile(r"version .(GLIBC_[0-9.]*). not found")


class Readiness:
    def __init__(self, host: Host, settings: Settings, services: Services) -> None:
        self._host = host
        self._settings = settings
        self._services = services

    # --- checks -----------------------------------------------------------------------------------------------------------------

    def unmet(self, part: Part) -> str:
        """The reason of the first check that fails."""
        for check in part.checks:
            reason = self._unmet(check)
            if reason:
                return reason
        return ""

    def _unmet(self, check: Check) -> str:
        if check.kind == "http":
            return self._without_answer(self._settings.expand(check.what), check.contains)
        if check.kind == "file":
            return self._stale(check)
        address = self._settings.expand(check.what)
        return "" if ports.inodes(ports.port_of(address)) else f"nothing listens on {address}"

    @staticmethod
    def _without_answer(url: str, contains: str) -> str:
        try:
            body = get(url, _ANSWER_S)
        except (OSError, ValueError):
            return f"{url} does not respond"
        return "" if contains.encode("utf-8", "surrogateescape") in body else f"{url} responds, but without {contains}"

    def _stale(self, check: Check) -> str:
        path = self._host.at(check.what)
        if not os.path.isfile(path):
            return f"{path} is missing"
        age_s = int(time.time()) - int(os.stat(path).st_mtime)
        if age_s >= check.fresh_s:
            return f"{path} was last written {age_s} s ago, expected within {check.fresh_s} s"
        text = read_or_empty(path)
        if check.contains in text:
            return ""
        # The writer of the file may have added the reason.
        said = [line[len("# says: ") :] for line in text.split("\n") if line.startswith("# says: ")]
        return f"{path} does not contain {check.contains}" + (f": {said[0]}" if said and said[0] else "")

    # --- waiting ----------------------------------------------------------------------------------------------------------------

    def unmet_after(self, part: Part, within_s: float) -> str:
        """Like `unmet`, after a while: a service may be restarting at this moment, or about to respond."""
        deadline, last = time.monotonic() + within_s, False
        while True:
            reason = self.unmet(part)
            if not reason or last:
                return reason
            # Once more after that time: on a busy host a single request may take all of it.
            last = time.monotonic() >= deadline
            pause()

    def wait(self, part: Part) -> None:
        """Until all its units run steadily and all its checks pass. Raises Failure on a timeout. Measured by a clock that never
        jumps: one that time synchronization corrects by an hour during an apply would end every wait at once."""
        if not part.units and not part.checks:
            return
        longest_s = max((check.within_s for check in part.checks), default=0) or 10
        deadline = time.monotonic() + longest_s
        say(f"{part.name}: waiting until it is ready, at most {longest_s} seconds")
        waiting = Waiting()
        while True:
            unsteady = self.unsteady(part.units, waiting)
            # The service itself is asked for a while, and not the service manager each time.
            reason = "" if unsteady else self.unmet_after(part, 2)
            if not unsteady and not reason:
                return
            if time.monotonic() >= deadline and self._is_pulling(part):
                deadline = time.monotonic() + longest_s
            if waiting.gave_up or time.monotonic() >= deadline:
                raise self._not_ready(part, unsteady, reason, longest_s)
            pause()

    def unsteady(self, units: list[Unit], waiting: Waiting) -> str:
        """The first unit that does not run steadily."""
        return next((unit.name for unit in units if not self._services.is_steady(unit.name, unit.type, waiting)), "")

    def _is_pulling(self, part: Part) -> bool:
        """Is one of its units still downloading what it will run? Its last line says so, and it has its own timeout. If the wait
        ended first, the download would start over with every run where the network is slow or shared by a whole fleet."""
        for unit in part.units:
            words = self._services.end(unit.name).words
            if words.startswith("pulling "):
                say(f"{unit.name}: still {words}")
                return True
        return False

    def _not_ready(self, part: Part, unsteady: str, reason: str, waited_s: int) -> Failure:
        """With the last lines of the log; a program's last words usually explain why it exited."""
        why = f"service {unsteady} does not keep running" if unsteady else f"{reason} (waited {waited_s} s)"
        # A server that starts, reads its key and exits, over and over, has said why; so has the one-shot program that did not
        # write a file.
        about = unsteady or (part.units[0].name if part.units else "")
        end = self._services.end(about) if about else None
        # Not what went well in a program that runs.
        if end and not (not unsteady and _SAID.search(end.words)) and end.words not in why:
            why = f"{why}: {end.words[:300]}"
        log = [line for unit in part.units for line in self._services.log(unit.name)][-20:]
        library = [match.group(1) for line in log for match in [_LIBRARY.search(line)] if match]
        failure = Failure("service-failed", why, log)
        if library:
            failure = Failure(
                "unsupported",
                f"the program of service {unsteady} was built for a newer system than this one, which has no {library[-1]}; "
                f"use the upstream build (artifacts: upstream or mirror), or upgrade this host",
                log,
            )
        if unsteady:
            taken = self.foreign_listener(part, unsteady)
            if taken:
                failure = Failure(taken.code, taken.message, log)
            # A program that exited because something could not be downloaded exits with 13, as probes do; its last line is the
            # reason.
            if end and end.status == "13" and end.words:
                failure = Failure("download", end.words, log)
        return failure

    # --- ports ------------------------------------------------------------------------------------------------------------------

    def free_ports(self, part: Part) -> None:
        """Before a part's stopped services start, no other program may listen on the ports of its checks; otherwise that
        program's response would be taken for ours."""
        if any(self._services.is_running(unit.name, unit.type) for unit in part.units):
            return  # it may hold the port itself
        if until(10, lambda: not self.foreign_listener(part)):  # a service that was just stopped may need a moment
            return
        failure = self.foreign_listener(part)
        if failure:
            raise failure

    def ports_of(self, part: Part) -> list[int]:
        """Of its checks."""
        found = (ports.port_of(self._settings.expand(check.what)) for check in part.checks if check.kind != "file")
        return [port for port in found if port]

    def foreign_listener(self, part: Part, unit: str = "", ours: AbstractSet[int] | None = None) -> Failure | None:
        """Is the port of a check in use? Asked while our service does not run, or with a unit that dies and is started again, and
        may hold the port at this moment. `ours`: ports of other services of ours; then no process that we started is foreign."""
        for port in self.ports_of(part):
            inodes = ports.inodes(port)
            if not inodes:
                continue
            holder = ports.holder(inodes)
            if ours is not None and (port in ours or (holder.pid and is_of_prefix(holder.pid, self._host.prefix))):
                continue
            if unit and not self._is_foreign(port, inodes, holder, unit):
                continue
            return Failure(
                "port-taken",
                f"port {port} is in use by {holder.name}; stop it, or set another port (ports of the host); an existing "
                f"exporter that serves the metrics of its kind can be adopted instead (adopt: true for the host)",
            )
        return None

    @staticmethod
    def _is_foreign(port: int, inodes: list[str], holder: ports.Holder, unit: str) -> bool:
        """No process of the unit, and no process that has ended since, as the unit's do again and again."""
        if holder.pid and ports.is_process_of(holder.pid, unit):
            return False
        pause()
        return ports.inodes(port) == inodes
