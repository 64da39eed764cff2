"""Services under supervisord, for containers without systemd and for hosts below a prefix."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import time
import xmlrpc.client
from typing import NamedTuple, Sequence

from .disk import unlink
from .errors import Failure
from .host import Host
from .processes import environment_of, is_of_prefix, pids, send
from .programs import lines_of, read_or_empty, run, until
from .records import Placed
from .services import MOST_RESTARTS, SUPERVISOR_CONFIG, End, Services, Waiting, last_words
from .settings import Settings
from .supervisor_socket import ask

_RUN = "/run/gpu-fleet"


class _Program(NamedTuple):
    state: str = ""
    pid: str = ""
    log: str = ""


class Supervisord(Services):
    name = "supervisor"

    def __init__(self, host: Host, settings: Settings, placed: Placed) -> None:
        super().__init__()
        self._host = host
        self._settings = settings
        self._placed = placed
        self._run = host.at(_RUN)
        self._programs: dict[str, _Program] = {}
        self._just_started = False
        self._changes: dict[str, str] | None = None  # what `_reread` found: program -> available, changed or disappeared

    # --- talking to it ----------------------------------------------------------------------------------------------------------

    def _find(self) -> str | None:
        """The program. Its supervisorctl is not needed."""
        path = self._settings.get("GPU_FLEET_SUPERVISORD") or shutil.which("supervisord") or ""
        return path if path and os.access(path, os.X_OK) else None

    def _ask(self, method: str, *arguments: object) -> object:
        return ask(self._run, method, *arguments)

    def _supervise(self, program: str, *verbs: str) -> bool:
        """One after the other: start or stop, which wait for their end, add, remove, hup. False where supervisord does not
        answer."""
        for verb in verbs:
            try:
                if verb == "hup":
                    self._ask("supervisor.signalProcess", program, "HUP")
                else:
                    kind = "Process" if verb in ("start", "stop") else "ProcessGroup"
                    self._ask(f"supervisor.{verb}{kind}", program)
            except xmlrpc.client.Fault:
                continue  # it has that state already, or does not reach it: is_steady looks
            except OSError:
                return False
        return True

    def _status(self) -> bool:
        """Does it answer?"""
        self._programs = {}
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.stat(f"{self._run}/supervisor.sock").st_mode):
                return False
            answer = self._ask("supervisor.getAllProcessInfo")
            for each in answer if isinstance(answer, list) else ():
                log = str(each.get("stdout_logfile", ""))
                self._programs[str(each["name"])] = _Program(str(each["statename"]), str(each["pid"]), log)
            return isinstance(answer, list)
        return False

    def _program(self, unit: str) -> _Program:
        return self._programs.get(unit, _Program())

    # --- the manager itself -----------------------------------------------------------------------------------------------------

    def missing(self, changing: Sequence[str]) -> str:
        answers = self._status()
        if self._find() is None:
            return "is not installed"
        if not answers:
            return "is not running"
        return "to be restarted, because its configuration changed" if SUPERVISOR_CONFIG in changing else ""

    def prepare(self) -> None:
        program = self._find()
        if program is None:
            looked = self._settings.get("GPU_FLEET_SUPERVISORD") or "supervisord on the PATH"
            raise Failure(
                "unsupported",
                f"this host has neither systemd nor supervisord (looked for {looked}); install the supervisor package, or set "
                f"the path of the program (supervisord of the host)",
            )
        self._stop_it()
        unlink(f"{self._run}/supervisor.sock")
        # A clean environment: programs get their values only from the environment file.
        environment = {"PATH": os.environ["PATH"], "HOME": "/", "GPU_FLEET_PREFIX": self._host.prefix}
        done = run(program, "-c", self._host.at(SUPERVISOR_CONFIG), environment=environment, directory=self._run)
        if not done.ok:
            raise Failure.saying("internal", "supervisord did not start", done.stderr)
        self._changes = None
        self.started = True
        if until(50, self._status):
            return
        log = read_or_empty(self._host.at("/var/log/gpu-fleet/supervisord.log")).rstrip("\n").split("\n")[-20:]
        raise Failure("service-failed", "supervisord was started but does not respond", log)

    def _stop_it(self) -> None:
        """By a signal, since its configuration may be missing or broken; it stops its programs first."""
        pid = read_or_empty(f"{self._run}/supervisord.pid").strip()
        if pid.isdigit() and is_of_prefix(pid, self._host.prefix) and send(pid, signal.SIGTERM):
            until(150, lambda: not is_of_prefix(pid, self._host.prefix))  # programs get 10 s to end
        self._stop_orphans()

    def _stop_orphans(self) -> None:
        """Programs of a supervisord that was killed keep running and keep their ports. Their environment has supervisord's
        variables and our prefix, so no other process is signalled; this run has neither, also where a loop of them started it."""
        if not until(50, lambda: not self._signal_orphans(signal.SIGTERM)):
            until(5, lambda: not self._signal_orphans(signal.SIGKILL))

    def _signal_orphans(self, number: signal.Signals) -> bool:
        """Were there any?"""
        ours = [pid for pid in pids() if is_of_prefix(pid, self._host.prefix)]
        orphans = [pid for pid in ours if any(each.startswith("SUPERVISOR_PROCESS_NAME=") for each in environment_of(pid))]
        return any([send(pid, number) for pid in orphans])  # to each of them

    def definitions(self, units: Sequence[tuple[str, str]] = ()) -> None:
        """Reports a broken file in supervisor.d here, instead of when some other program is started."""
        if not self.definitions_change:
            return
        self._reread()
        for program, change in list((self._changes or {}).items()):
            if change == "disappeared":
                self._supervise(program, "stop", "remove")

    def _reread(self) -> None:
        try:
            answer = self._ask("supervisor.reloadConfig")
        except xmlrpc.client.Fault as fault:
            said = fault.faultString
            raise Failure("service-failed", f"supervisord did not read the unit files: ERROR: {said}") from fault
        except OSError:
            self._changes = {}
            return
        self._changes = {}
        if isinstance(answer, list) and answer:
            for change, names in zip(("available", "changed", "disappeared"), answer[0]):
                self._changes.update({str(name): change for name in names})

    def leave(self) -> None:
        self._stop_it()

    # --- units ------------------------------------------------------------------------------------------------------------------

    def difference(self, unit: str, type: str) -> str:
        state = self._program(unit).state
        if state in ("RUNNING", "STARTING"):
            return ""
        if state:
            return f"is not running ({state.lower()})"
        return "is not running" if self._placed.get("unit", unit) else "is not set up"

    def is_running(self, unit: str, type: str) -> bool:
        return self._program(unit).state in ("RUNNING", "STARTING")

    def _update(self, unit: str) -> bool:
        """Starts a new program, and restarts one whose file changed. False where it is neither."""
        if self._changes is None:
            self._reread()
        change = (self._changes or {}).get(unit)
        if change == "available":
            self._supervise(unit, "add")
        elif change == "changed":
            self._supervise(unit, "stop", "remove", "add")
        else:
            return False
        self._just_started = True
        return True

    def enable(self, unit: str, type: str) -> None:
        pass

    def start(self, unit: str, type: str) -> None:
        if not self._update(unit):
            self._supervise(unit, "start")  # is_steady checks the result

    def restart(self, unit: str, type: str) -> None:
        if not self._update(unit):
            self._supervise(unit, "stop", "start")

    def reload(self, unit: str, type: str) -> None:
        self._update(unit)
        self._status()
        name = unit[len("gpu-fleet-") :] if unit.startswith("gpu-fleet-") else unit
        libexec = self._host.at("/opt/gpu-fleet/libexec")
        if self._program(unit).state != "RUNNING":
            self._supervise(unit, "start")
        elif os.access(f"{libexec}/start-reload-{name}", os.X_OK):
            environment = {**os.environ, "GPU_FLEET_PREFIX": self._host.prefix}
            done = run(f"{libexec}/run", f"reload-{name}", environment=environment, joined=True)
            if not done.ok:
                log = done.stdout.rstrip("\n").split("\n")
                raise Failure("service-failed", f"service {unit} did not accept its new configuration", log)
        else:
            self._supervise(unit, "hup")

    def stop(self, unit: str, type: str) -> None:
        if not self._supervise(unit, "stop"):
            self._stop_orphans()  # supervisord does not answer

    def is_steady(self, unit: str, type: str, waiting: Waiting) -> bool:
        """supervisord reports a program as RUNNING only after it has run for a second. `_update` does not wait for that, as
        `start` does, so the first query would be for nothing."""
        if self._just_started:
            time.sleep(1)
        self._just_started = False
        self._status()
        if self._program(unit).state == "STARTING":
            time.sleep(1)
            self._status()
        program = self._program(unit)
        if program.state == "FATAL":
            waiting.gave_up = True
        return program.state == "RUNNING" and self._is_same_process(unit, program.pid, waiting)

    def _is_same_process(self, unit: str, pid: str, waiting: Waiting) -> bool:
        """As the last time that this wait looked? supervisord does not count the restarts of a program that dies after its first
        second, and starts it again for ever."""
        if f"{unit}:{pid}" in waiting.runs:
            return True
        waiting.runs.add(f"{unit}:{pid}")
        if unit not in waiting.seen:
            waiting.seen.add(unit)
            return True
        waiting.restarts += 1
        if waiting.restarts >= MOST_RESTARTS:
            waiting.gave_up = True
        return False

    def log(self, unit: str) -> list[str]:
        return lines_of(_tail(self._program(unit).log, 4000))[-20:]

    def end(self, unit: str) -> End:
        return End("", last_words("\n".join(_tail(self._program(unit).log, 1 << 20).split("\n")[-201:])))


def _tail(path: str, size: int) -> str:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - size))
        return file.read(size).decode("utf-8", "surrogateescape")
    return ""
