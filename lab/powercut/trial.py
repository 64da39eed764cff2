"""One power cut or kill: the run that is cut, the state it leaves, and what has to be true of it."""

from __future__ import annotations

import json
import random
import shlex
import shutil
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lab.powercut import disks, engine, subject
from lab.powercut.disks import Disk, new_disk
from lab.powercut.engine import Project
from lab.powercut.machine import Booted, Machine
from lab.powercut.waits import LIMIT_S, Stuck, finish

STATE = "var/lib/gpu-fleet"
CUTS_PER_RUN = 10
POWER = "power cut"
KILLS = ("connection", "engine", "host program", "plugin")
KILLS_OF_PULL = ("host program",)  # the host fetches the bundle itself
BY_ENGINE = ("engine", "plugin")
_NARROW_S = 0.02
_ATTEMPTS = 40
_AFTER_S = 1.5  # cuts come until so long after the end of the run: what was reported as done has to be on disk by then

_APPLY = "sh /srv/envelope-{0}/bundle/converge apply --prefix '' --envelope /srv/envelope-{0}"
# As the provider does it, whose connection stays open until the host's answer.
_ABOUT = f"{subject.STACK} {subject.INSTANCE}"
_BOOTSTRAP = "{{ mkfifo /tmp/open; exec 5<>/tmp/open; sh /srv/bootstrap.sh {} '' " + _ABOUT + " 0 '' <&5; }}"
_PUBLISHED = "mount --bind /srv/publication-{} /srv/publication && "
_INSTALL = _PUBLISHED.format(1) + (
    f"sh /srv/publication/install-gpu-fleet --instance {subject.INSTANCE} --password-file /srv/password"
)
_PULL = _PUBLISHED.format(2) + "/opt/gpu-fleet/bin/gpu-fleet-pull"


@dataclass(frozen=True)
class Scenario:
    """`before`: how the machine got to where it is when `command` runs. `version`: of the bundle afterwards, 0: none."""

    name: str
    before: str
    command: str
    version: int


SCENARIOS = (
    Scenario("first apply", "true", _APPLY.format(1), 1),
    Scenario("upgrade", _APPLY.format(1), _APPLY.format(2), 2),
    Scenario("removal", _APPLY.format(1), _BOOTSTRAP.format("remove"), 0),
    Scenario("pull", _INSTALL, _PULL, 2),
)

# Every file, account and link, but for logs, locks and what useradd keeps of the version before.
_LISTING = r"""
find /etc /opt /usr/local /var/lib /root -xdev \( -name '*-' -o -name .pwd.lock \
  -o -regex '/etc/\(passwd\|group\|g?shadow\|sub[gu]id\)\(\.[a-z0-9]+\|\+\)?' \) -prune -o -printf '%p %y %m %u:%g %l\n' | sort
find /etc/fleet-app /etc/fleet-other -type f -exec sha256sum {} + | sort
getent passwd | sort; getent group | sort
"""


_OURS = (
    "find / -xdev \\( -path /proc -o -path /srv -o -path /tmp \\) -prune -o -path '*gpu-fleet*' -print |"
    " grep -v '^/var/lib/gpu-fleet'; cat /etc/fleet-app/same /etc/fleet-app/only* 2>/dev/null; true"
)

# What the second version lacks, but for logs.
_RETIRED = (
    "find / -xdev \\( -path /proc -o -path /srv -o -path /tmp -o -path /var/log \\) -prune"
    " -o \\( -name '*fleet-retired*' -o -path '*/gpu-fleet/retired*' -o -name only-in-the-first \\) -print;"
    " getent passwd gpu-fleet-retired; getent group gpu-fleet-retired; true"
)


def _section(name: str, command: str) -> str:
    """Its output between marks, in a session of its own."""
    return (
        f"echo '== {name}'; setsid -w sh -c {shlex.quote(command)} 2>/tmp/stderr; code=$?\n"
        'echo; echo "== end $code"; tail -n 3 /tmp/stderr\n'
    )


def sections(output: str) -> dict[str, tuple[int, str]]:
    """By name: exit code, and what was printed with the last lines of stderr."""
    found = {}
    name = text = ""
    for part in output.split("== ")[1:]:
        if part.startswith("end "):
            code, _, errors = part.removeprefix("end ").partition("\n")
            found[name] = (int(code), text + errors)
        else:
            name, _, text = part.partition("\n")
    return found


Met = Literal["too early", "in the middle", "too late"]


@dataclass
class Trial:
    disk: str  # kind of its file system
    cause: str
    scenario: str
    at_s: float
    was_done: bool  # the run had reported success before the cut
    found: str = ""  # what the cut left, in a word
    reached: str = ""  # how far a run was when it was killed
    wrong: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.scenario}, {self.disk}, {self.cause} at {self.at_s:.2f} s" + (f" ({self.reached})" if self.reached else "")


@contextmanager
def errors_in(trial: Trial) -> Iterator[None]:
    """Errors of the lab itself make a trial a wrong one; the other trials continue."""
    try:
        yield
    except Stuck as stuck:
        trial.wrong.append(str(stuck))
    except Exception:
        trial.wrong.append(traceback.format_exc())


@dataclass
class Laboratory:
    """`shelf`: where the images are. `work`: for mounts. `pristine`: the listing of a machine that nothing was ever placed on."""

    shelf: Path
    work: Path
    shared: Path
    layers: tuple[Path, ...]
    templates: dict[tuple[str, str], Disk] = field(default_factory=dict)
    pristine: dict[str, str] = field(default_factory=dict)
    durations: dict[tuple[str, str], float] = field(default_factory=dict)
    engine_durations: dict[str, float] = field(default_factory=dict)
    projects: dict[int, Project] = field(default_factory=dict)  # by the version that the host of its stack has
    _number: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def name(self) -> str:
        with self._lock:
            self._number += 1
            return f"{self.work.name}-{self._number}"

    def machine(self, at: Path) -> Machine:
        return Machine(at, self.layers, self.shared)

    def template(self, kind: str, scenario: Scenario) -> Disk:
        """A disk with the state before the scenario, unmounted in order."""
        key = (kind, scenario.before)
        if key not in self.templates:
            disk = new_disk(self.shelf, self.name(), kind)
            at = self.work / disk.image.name
            with disk.mounted(at):
                for path, text in subject.OTHERS.items():
                    file = at / "upper" / path.lstrip("/")
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text(text)
                for directory in (at / "upper").rglob("*"):
                    directory.chmod(0o755 if directory.is_dir() else 0o644)
                (at / "upper").chmod(0o755)
                if kind not in self.pristine:
                    self.pristine[kind] = self.machine(at).run(_LISTING)[1]
                code, out, err = self.machine(at).run(scenario.before)
                if code != 0:
                    raise RuntimeError(f"{scenario.before} exited {code}:\n{out}{err}")
            self.templates[key] = disk
        return self.templates[key]

    # --- power cuts ---

    def cut(self, kind: str, scenario: Scenario, rng: random.Random, cuts: int) -> Iterator[Trial]:
        """One run, of which the disk is copied at `cuts` random instants; each copy is then looked at by itself."""
        disk = self.template(kind, scenario).copy(self.name())
        usual_s = self.duration(kind, scenario)
        instants = sorted(rng.uniform(0, usual_s + _AFTER_S) for _ in range(cuts))
        # Others write too: a sync now and then brings to disk what is half done.
        syncs = sorted(rng.uniform(0, usual_s) for _ in range(rng.choice((0, 1, 3))))
        copies: list[tuple[Trial, Disk]] = []
        at = self.work / disk.image.name
        with disk.mounted(at):
            process = self.machine(at).start(scenario.command + "; echo ended $?; sleep 60")
            lines: list[str] = []
            began = time.monotonic()

            def read() -> None:
                for line in process.stdout or ():
                    lines.append(line)
                    if line.startswith("ended "):
                        self.durations[kind, scenario.name] = time.monotonic() - began

            reader = threading.Thread(target=read, daemon=True)
            reader.start()
            events = sorted([(instant, "cut") for instant in instants] + [(instant, "sync") for instant in syncs])
            for instant, what in events:
                time.sleep(max(0.0, began + instant - time.monotonic()))
                if what == "sync":
                    disks.run("sync", "--file-system", at)
                    continue
                was_done = reported(lines)
                copies.append((Trial(kind, POWER, scenario.name, time.monotonic() - began, was_done), disk.copy(self.name())))
            process.kill()
            reader.join(LIMIT_S)
            if reader.is_alive():
                raise Stuck(f"waited {LIMIT_S} s for the end of the run whose power was cut")
            process.wait(LIMIT_S)
        disk.remove()
        for trial, copy in copies:
            with errors_in(trial):
                self.examine(trial, copy, scenario, leave=rng.random() < 0.5)
            copy.remove()
            yield trial

    def duration(self, kind: str, scenario: Scenario) -> float:
        """Of an undisturbed run on this machine."""
        key = (kind, scenario.name)
        if key in self.durations:
            return self.durations[key]
        disk = self.template(kind, scenario).copy(self.name())
        at = self.work / disk.image.name
        with disk.mounted(at):
            began = time.monotonic()
            code, out, err = self.machine(at).run(scenario.command)
            took_s = time.monotonic() - began
        disk.remove()
        if code != 0:
            raise RuntimeError(f"{scenario.command} exited {code}:\n{out}{err}")
        self.durations[key] = took_s
        return took_s

    def examine(self, trial: Trial, disk: Disk, scenario: Scenario, leave: bool) -> None:
        at = self.work / disk.image.name
        with disk.mounted(at):
            self.look_for_others(trial, at)
            code, out, err = self.machine(at).run(_script(after(scenario, leave)))
            self.evaluate(trial, scenario, sections(out), f"{code} {out[-300:]} {err[-300:]}")
        self.remove_root(at)

    def look_for_others(self, trial: Trial, at: Path) -> None:
        """What is not ours: in its place, or saved."""
        for path, text in subject.OTHERS.items():
            places = [at / "upper" / path.lstrip("/"), at / "upper" / STATE / "saved" / path.lstrip("/")]
            if not any(place.is_file() and place.read_text() == text for place in places):
                trial.wrong.append(f"{path}, which is not ours, is lost")

    def remove_root(self, at: Path) -> None:
        shutil.rmtree(at.with_name(at.name + "-root"), ignore_errors=True)

    def evaluate(self, trial: Trial, scenario: Scenario, seen: dict[str, tuple[int, str]], last_words: str) -> None:
        """Of what each step of `after` exited with and printed. `last_words`: of a machine on which a step is missing."""
        wrong = trial.wrong
        digest = {0: ""} | {version: (self.shared / f"digest-{version}").read_text() for version in (1, 2)}
        try:
            (found_code, found), (next_code, said), (check_code, checked) = (
                seen["found"],
                seen["next"],
                seen.get("check", (0, "")),
            )
            (gone_code, gone), (_, listing) = seen.get("remove", (0, "")), seen.get("listing", (0, self.pristine[trial.disk]))
        except KeyError as missing:
            wrong.append(f"the machine did not come to {missing}: {last_words}")
            return
        drift = [line for event in _events(found) if event["event"] == "part" for line in event.get("drift", ())]
        lasting = [line for line in drift if "is not running" not in line and "/run/gpu-fleet:" not in line]
        trial.found = {0: "no drift", 3: "absent", 4: "drift" if lasting else "as new", 11: "damaged"}.get(
            found_code, f"code {found_code}"
        )
        has_ours = bool(seen["before"][1].strip())
        here = seen["digest"][1].strip()
        if trial.was_done and scenario.version:
            if lasting or found_code not in (0, 4) or here != digest[scenario.version]:
                wrong.append(f"reported as done, but not on disk: {trial.found}, {lasting or found[-300:]}")
        elif trial.was_done and (has_ours or found_code != 3):
            wrong.append(f"reported as removed, but on disk: {trial.found}, {seen['before'][1][:300]}")
        if found_code == 3 and has_ours:
            wrong.append(f"called absent, but this is there: {seen['before'][1][:300]}")
        if next_code not in ((0,) if scenario.version else (0, 3)):
            wrong.append(f"the next run exited {next_code}: {said[-600:]}")
        if scenario.version and check_code != 0:
            wrong.append(f"after the next run there is drift: {checked[-600:]}")
        if scenario.version == 2 and next_code == 0 and seen["retired"][1].strip():
            wrong.append(f"after the next run this is left of what the second version lacks: {seen['retired'][1][:600]}")
        if gone_code not in (0, 3):
            wrong.append(f"the removal exited {gone_code}: {gone[-600:]}")
        before, after_ = set(self.pristine[trial.disk].split("\n")) - {""}, set(listing.split("\n")) - {""}
        if before != after_:
            changes = [f"-{line}" for line in sorted(before - after_)] + [f"+{line}" for line in sorted(after_ - before)]
            wrong.append(f"after the removal the machine is not as it was: {changes[:6]}")

    # --- kills ---

    def kill(self, kind: str, scenario: Scenario, cause: str, rng: random.Random) -> Trial:
        """A kill that met the run in its middle. One that came too early or too late is tried again."""
        by_engine = cause in BY_ENGINE
        usual_s = self.engine_durations[scenario.name] if by_engine else self.duration(kind, scenario)
        attempt = self._kill_engine if by_engine else self._kill_on_host
        first_s, last_s = 0.0, usual_s
        missed = []
        for _ in range(_ATTEMPTS):
            trial = Trial(kind, cause, scenario.name, rng.uniform(first_s, last_s), was_done=False)
            disk = self.template(kind, scenario).copy(self.name())
            at = self.work / disk.image.name
            met: Met = "in the middle"
            with errors_in(trial), disk.mounted(at):
                met = attempt(trial, scenario, at, leave=rng.random() < 0.5)
            self.remove_root(at)
            disk.remove()
            if met == "in the middle":
                return trial
            missed.append(f"{trial.at_s:.2f} s {met}")
            if met == "too early":
                first_s = trial.at_s
            else:
                last_s = trial.at_s
            if last_s - first_s < _NARROW_S:  # the machine's load has changed
                usual_s *= 1.5
                first_s, last_s = 0.0, usual_s
        raise Stuck(f"no kill met the run in its middle: {', '.join(missed)}")

    def _kill_on_host(self, trial: Trial, scenario: Scenario, at: Path, leave: bool) -> Met:
        code, out, err = self.machine(at).run(_killed(scenario, trial.cause, trial.at_s) + _script(after(scenario, leave)))
        seen = sections(out)
        if seen.get("proof", (1, ""))[0] == 0:
            trial.reached = seen["begun"][1].strip()
            if seen.get("over", (0, ""))[0] != 0:
                trial.wrong.append(f"the work on the host went on after the {trial.cause} was killed: {seen['over'][1]}")
            self.look_for_others(trial, at)
            self.evaluate(trial, scenario, seen, f"{code} {out[-300:]} {err[-300:]}")
            return "in the middle"
        return "too early" if seen.get("begun", (0, ""))[0] != 0 else "too late"

    def _kill_engine(self, trial: Trial, scenario: Scenario, at: Path, leave: bool) -> Met:
        """Proof: right before the kill the verb was at work on the host, and engine and plugin were alive; and the run did not
        succeed."""
        project = self.projects[1 if scenario.before != "true" else 0].copy(at.with_name(at.name + "-project"))
        try:
            with self.machine(at).booted() as machine:
                run = project.start(machine, scenario.version)
                engine.until_connected(machine, run)
                time.sleep(trial.at_s)
                verb, is_connected = engine.work_on(machine), engine.connections(machine) > 0
                plugin = engine.plugin_of(run)
                is_met = verb in ("apply", "remove") and plugin != 0 and run.poll() is None
                engine.kill(plugin if is_met and trial.cause == "plugin" else run.pid)
                output, _ = finish(run, f"the run whose {trial.cause} was killed")
                if not is_met or run.returncode == 0:
                    return "too early" if is_connected and not verb else "too late"
                trial.reached = f"{verb} at work"
                self.look_for_others(trial, at)
                seen = self._after_engine(trial, machine, project, scenario, leave)
                self.evaluate(trial, scenario, seen, output[-600:])
        finally:
            shutil.rmtree(project.directory)
        return "in the middle"

    def _after_engine(
        self, trial: Trial, machine: Booted, project: Project, scenario: Scenario, leave: bool
    ) -> dict[str, tuple[int, str]]:
        """The steps of `after`, in which the next run and the removal are the engine's."""
        if not engine.until_idle(machine):
            trial.wrong.append(f"the work on the host went on after the {trial.cause} was killed")
        seen = sections(machine.run(_script(_LOOK))[1])
        if trial.cause == "engine":
            project.release_lock()
        seen["next"] = project.run(machine, scenario.version)
        expected = [subject.INSTANCE] if scenario.version else []
        if seen["next"][0] == 0 and project.hosts() != expected:
            trial.wrong.append(f"the state holds {project.hosts()} after the next run, not {expected}")
        if scenario.version:
            seen |= sections(machine.run(_script(_CHECK))[1])
        if scenario.version and leave:
            seen["remove"] = project.run(machine, 0)
        if leave or not scenario.version:
            seen |= sections(machine.run(_script({"listing": _LISTING}))[1])
        return seen

    def prepare_engine(self) -> None:
        """Projects whose state is that of an empty stack, and of one with the first version; how long each run is connected."""
        project = Project(self.work / "project", {version: self.shared / f"desired-{version}" for version in (1, 2)})
        project.create()
        self.projects[0] = project.copy(self.work / "project-0")
        by_version = {scenario.version: scenario for scenario in SCENARIOS if scenario.name != "pull"}
        disk = self.template("ext4", by_version[1]).copy(self.name())
        at = self.work / disk.image.name
        with disk.mounted(at), self.machine(at).booted() as machine:
            for version in (1, 2, 0):
                run = project.start(machine, version)
                engine.until_connected(machine, run)
                began = time.monotonic()
                engine.until_disconnected(machine, run)
                self.engine_durations[by_version[version].name] = time.monotonic() - began
                output, _ = finish(run, f"the undisturbed {by_version[version].name}")
                if run.returncode != 0:
                    raise RuntimeError(f"pulumi exited {run.returncode}:\n{output}")
                if version == 1:
                    self.projects[1] = project.copy(self.work / "project-1")
        self.remove_root(at)
        disk.remove()


# Why a run counts as begun: its last line, or that it holds the lock of converge or of gpu-fleet-pull.
_BEGUN = f"""
begun=$(tail -n 1 /tmp/err)
for lock in /{STATE}/lock /{STATE}/pull/lock; do
  [ -n "$begun" ] || [ ! -e $lock ] || flock -s -n $lock true || begun="$lock is held"
done
"""


def _killed(scenario: Scenario, how: str, at_s: float) -> str:
    """`host program`: SIGKILL of the whole run. `connection`: the end of bootstrap.sh's standard input, which ends the run.

    Proof: when it was killed, the run was alive and had begun, and it never reported a result."""
    if how == "connection":
        verb = "remove" if scenario.version == 0 else "apply"
        size = f"$(stat -c %s /srv/archive-{scenario.version})" if scenario.version else "0"
        feed = f"cat /srv/archive-{scenario.version}; " if scenario.version else ""
        start = f"""
mkfifo /tmp/connection
( {feed}exec sleep infinity ) >/tmp/connection & feeder=$!
setsid sh /srv/bootstrap.sh {verb} '' {_ABOUT} {size} '' </tmp/connection >/tmp/out 2>/tmp/err & run=$!"""
        kill = "kill -0 $run 2>/dev/null; alive=$?; kill -s KILL $feeder; wait $run; [ $? -ne 0 ] && [ $alive -eq 0 ]; killed=$?"
    else:
        start = f"setsid sh -c {shlex.quote(scenario.command)} >/tmp/out 2>/tmp/err & run=$!"
        kill = "kill -s KILL -- -$run; wait $run; [ $? -eq 137 ]; killed=$?"
    # Not pgrep -f: the command line of process 1 is all of this script.
    return f"""{start}
sleep {at_s:.3f}
{_BEGUN}
{kill}
echo '== begun'; echo "$begun"; [ -n "$begun" ]; echo "== end $?"
echo '== proof'; [ $killed -eq 0 ] && [ -n "$begun" ] && ! grep -q '"event":"result"' /tmp/out; echo "== end $?"
tries={LIMIT_S * 20}
while pgrep -s $run >/dev/null && [ $tries -gt 0 ]; do tries=$((tries - 1)); sleep 0.05; done
echo '== over'; pgrep -a -s $run; [ $? -eq 1 ]; echo "== end $?"
"""


_LOOK = {"before": _OURS, "digest": f"cat /{STATE}/digest 2>/dev/null", "found": _BOOTSTRAP.format("check")}
_CHECK = {"check": _BOOTSTRAP.format("check"), "retired": _RETIRED}


def after(scenario: Scenario, leave: bool) -> dict[str, str]:
    """What a person, or the host's timer, does after it. `leave`: then the machine is left for good."""
    again = scenario.command
    if scenario.version == 0:
        # Where the program itself was hit, the message says that an apply repairs it.
        repair = f"[ $code -eq 11 ] || exit $code; rm -f /tmp/open; {_APPLY.format(1)} && {scenario.command}"
        again = f"{{ {scenario.command}; }} || {{ code=$?; {repair}; }}"
    steps = {**_LOOK, "next": again}
    if scenario.version:
        steps |= _CHECK
    if leave or not scenario.version:
        # A host in pull mode is removed by its own program, which knows its own temporary directories.
        remove = "/opt/gpu-fleet/bin/gpu-fleet-pull --remove" if scenario.name == "pull" else _BOOTSTRAP.format("remove")
        steps |= {"remove": remove, "listing": _LISTING}
    return steps


def _script(steps: Mapping[str, str]) -> str:
    return "".join(f"rm -f /tmp/open; {_section(name, command)}" for name, command in steps.items())


def reported(lines: Sequence[str]) -> bool:
    return any(line.startswith("ended 0") for line in lines)


def _events(text: str) -> list[dict[str, Any]]:
    events = []
    for line in text.splitlines():
        with suppress(ValueError):
            events.append(json.loads(line))
    return [event for event in events if isinstance(event, dict) and "event" in event]
