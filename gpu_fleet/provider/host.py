"""The operations on a host: bring it to a bundle, plan that, check for drift, remove everything. Knows no Pulumi.

Every verb is one short command whose arguments hold no secret. It reports that it is ready, reads bootstrap.sh and an archive
from standard input (bundle, settings, secrets, artifacts), and runs the converge program, whose JSON lines are read here.
Standard input stays open meanwhile: when it closes, because we stop or because we are gone, the work ends too.

A host is believed nothing: what it prints is bounded, cleaned and parsed in outcome.py, and one that prints nothing is given up.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from gpu_fleet.provider.envelope import Archive, Artifacts, Envelope, Members
from gpu_fleet.provider.lines import Lines
from gpu_fleet.provider.outcome import Cleaner, Outcome
from gpu_fleet.provider.sudo import QUIET_S, SharedPassword, Sudo
from gpu_fleet.provider.transport import LOST, Running, Session, Transport, TransportError

# All that sudo writes to the host's log: the program itself comes on standard input. `dd` reads not one byte too many, as
# busybox's `head` would.
_START: Final = """echo '{"event":"ready"}'; eval "$(dd bs=1 count="$7" 2>/dev/null)\""""
_ENVIRONMENT: Final = Path(__file__).parents[1] / "host/rootfs/opt/gpu-fleet/libexec/environment"
BOOTSTRAP: Final = _ENVIRONMENT.read_bytes() + Path(__file__).with_name("bootstrap.sh").read_bytes()
_CANNOT_UNPACK: Final = 10
_DAMAGED: Final = 11
_BY_SIGNAL: Final = 128  # a shell ends with 128 and the number of the signal

# The causes that converge and the transports report, as the first line of an error names them.
CAUSES: Final[Mapping[str, str]] = {
    "unreachable": "unreachable",
    "host-key": "host key",
    "auth": "auth",
    "sudo": "sudo",
    "no-driver": "no driver",
    "gpu-count": "GPU count",
    "old-driver": "driver too old",
    "download": "download",
    "checksum": "checksum",
    "disk-full": "disk full",
    "no-write": "no write permission",
    "packages": "package manager",
    "limit": "out of resources",
    "port-taken": "port taken",
    "service-failed": "service did not start",
    "unsupported": "not supported",
    "locked": "another run is at work",
    "other-stack": "belongs to another stack",
    "other-instance": "has another name",
    "damaged": "damaged",
    "bundle": "bundle",
    "silent": "no output",
    "flood": "too much output",
    "stopped": "stopped",
    "held-back": "held back",
    "gpus-in-use": "GPUs in use",
    "internal": "internal error",
}
# What a verb that ended early may have left, and what to run next.
_LEFT: Final[Mapping[str, str]] = {
    "apply": "what was changed until then stays, and the next `up` finishes it",
    "remove": "what was removed until then is gone, and the next `up` or `destroy` removes the rest",
}
# What keeps Python or a shell from running at all, so that the program itself cannot say it.
_DENIED: Final = (
    (
        "limit",
        re.compile(
            r"(?i)can(?:no|')t fork|fork: .*temporarily|cannot allocate memory|MemoryError|failed to map segment|Error 24$"
            "|Too many open files|File too large|File size limit"
        ),
        "end what needs so much there, or raise the limit of the login (`ulimit -a`; pam_limits)",
    ),
    ("disk-full", re.compile("No space left on device|Disk quota exceeded"), "free some space (df -h, df -i)"),
    (
        "no-write",
        re.compile("Operation not permitted|Permission denied"),
        "fapolicyd or SELinux may deny it (`ausearch -m fanotify,avc -ts recent` on the host shows what they denied), or NOEXEC "
        "of sudo (`sudo -l`)",
    ),
)
_LOCKS_OUT: Final = "with accounts of a directory, each further refusal may lock the login out of every host"
_NOTHING_LEFT: Final = "nothing was changed on the host"

READY_TIMEOUT_S = 25.0  # from the login to the first line; sudo may ask a slow directory server, or for the host's own name
IDLE_S: Final = 600.0  # without a line; long steps print one a minute (gpu_fleet/on_host/converge/fetch.py)
_LONGEST_VERB: Final = 6  # times that, for a host that prints a line now and then without end
_EXIT_TIMEOUT_S = 10.0  # from the result to the end of the command
_LOG_LINES: Final = 20
_LONGEST_EVENT: Final = 4 << 20  # bytes; one event may carry the diff of a large file
_LONGEST_LOG_LINE: Final = 16 << 10
_MOST_OUTPUT: Final = 1 << 30  # bytes of one verb; a host prints some kilobytes
_BETWEEN_PROGRESS_S: Final = 0.25
_CHUNK = 256 * 1024


@dataclass
class HostError(Exception):
    """One host failed. `outcome` is what was reached, None when the host was not touched."""

    code: str
    message: str
    log: Sequence[str] = ()
    outcome: Outcome | None = None

    def __str__(self) -> str:
        first = f"{CAUSES.get(self.code, self.code)}: {self.message}"
        return "\n".join([first, *(f"    {line}" for line in self.log)])


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a host is: `name` as in the inventory, `connection` as in the schema's type Connection. `stack`: who it may belong
    to, names separated by blanks. `instance`: who it is. Where its own record names another one it is neither checked nor
    removed."""

    connection: Mapping[str, Any]
    name: str = ""
    stack: str = ""
    instance: str = ""

    @property
    def is_local(self) -> bool:
        return bool(self.connection["kind"] == "local")

    @property
    def prefix(self) -> str:
        return self.connection.get("prefix") or ""


@dataclass(frozen=True, kw_only=True)
class SudoPasswords:
    """`common`: of every host that is not in `of_hosts`, which is by name."""

    common: str | None = None
    of_hosts: Mapping[str, str] = field(default_factory=dict, repr=False)

    def of(self, host: str) -> tuple[str | None, str]:
        """The password, None where there is none, and the key of the stack file that holds it."""
        if host in self.of_hosts:
            return self.of_hosts[host], f"gpu-fleet:sudoPasswords for {host}"
        return self.common, "gpu-fleet:sudoPassword"


Progress = Callable[[str], None]


class Hosts:
    """Every host of a run. Each method raises HostError; a cancelled one has stopped the work on the host first."""

    def __init__(
        self,
        local: Transport,
        ssh: Callable[[], Transport],
        *,
        sudo_passwords: SudoPasswords = SudoPasswords(),  # noqa: B008 - frozen
        artifacts: Path | None = None,
        secrets: Iterable[str] = (),
        idle_s: float = IDLE_S,
    ):
        """`ssh`: creates the transport when the first host needs it. `artifacts`: directory of files named by sha256 that
        hosts may need. `secrets`: what no message may show. `idle_s`: after how many seconds without a line a host is given
        up."""
        self._local, self._ssh = local, cache(ssh)
        self._sudo_passwords = sudo_passwords
        self._shared_password = SharedPassword()
        self._artifacts = Artifacts(artifacts) if artifacts else None
        self._cleaner = Cleaner(secrets)
        self._idle_s = idle_s

    async def apply(self, place: Place, envelope: Envelope, progress: Progress) -> Outcome:
        members: dict[str, bytes | Path] = dict(envelope.members())
        async with self._session(place) as session:
            outcome = await self._converse(session, place, "apply", members, progress)
            if outcome.needs:  # it has changed nothing yet
                members |= {f"artifacts/{digest}.gz": await self._artifact(digest) for digest in outcome.needs}
                outcome = await self._converse(session, place, "apply", members, progress)
            if outcome.needs:
                raise HostError("internal", "the host asked for files again after they were sent", outcome=outcome)
            return _raise_failures(outcome)

    async def plan(self, place: Place, envelope: Envelope, progress: Progress) -> Outcome:
        """What `apply` would change. Failures are part of the answer, not an error."""
        async with self._session(place) as session:
            return await self._converse(session, place, "plan", envelope.members(), progress)

    async def check(self, place: Place, progress: Progress) -> Outcome:
        """How the host differs from what was applied last; `is_absent` where nothing was."""
        async with self._session(place) as session:
            outcome = await self._converse(session, place, "check", {}, progress)
            return outcome if outcome.is_absent else _raise_failures(outcome)

    async def remove(self, place: Place, progress: Progress) -> Outcome:
        async with self._session(place) as session:
            outcome = await self._converse(session, place, "remove", {}, progress)
            return outcome if outcome.is_absent else _raise_failures(outcome)

    async def _artifact(self, digest: str) -> Path:
        if self._artifacts is None:
            raise HostError("download", f"the host needs the file with sha256 {digest}, and there is no directory of artifacts")
        try:
            return await self._artifacts.compressed(digest)
        except FileNotFoundError:
            missing = f"the host needs the file with sha256 {digest}, which is not in {self._artifacts.directory}"
            raise HostError("download", f"{missing}; `make artifacts` fetches it") from None

    def close(self) -> None:
        if self._artifacts:
            self._artifacts.close()

    @contextlib.asynccontextmanager
    async def _session(self, place: Place) -> AsyncIterator[Session]:
        transport = self._local if place.is_local else self._ssh()
        try:
            async with transport.session(dict(place.connection)) as session:
                yield session
        except TransportError as error:
            raise HostError(error.code, self._cleaner.message(error.message)) from None

    async def _converse(self, session: Session, place: Place, verb: str, members: Members, progress: Progress) -> Outcome:
        artifacts = str(self._artifacts.directory) if self._artifacts and place.is_local and verb == "apply" else ""
        archive = Archive(members)
        argv = start_command(verb, place, archive, artifacts)
        sudo = Sudo(*self._sudo_passwords.of(place.name)) if session.sudo else None
        running = await session.start(sudo.command(argv, has_secrets=bool(members)) if sudo else argv)
        shared = None if place.name in self._sudo_passwords.of_hosts else self._shared_password
        conversation = _Conversation(verb, running, sudo, self._cleaner, progress, self._idle_s, place.name, shared)
        try:
            await conversation.until_ready()
            outcome = await conversation.work(archive)
        except BaseException as error:
            is_stopped = isinstance(error, asyncio.CancelledError) and conversation.outcome is not None
            stopped = conversation.stopped() if is_stopped else None  # before the shell there prints that it was ended
            await asyncio.shield(running.stop())
            if stopped:
                raise stopped from None
            raise
        finally:
            conversation.close()
        return conversation.explained(outcome)


def _raise_failures(outcome: Outcome) -> Outcome:
    """Raises for parts that failed: the first is the cause, the others are reported below it."""
    failures = outcome.failures()
    if not failures:
        return outcome
    (first, error), *others = failures.items()
    log = list(error.log)
    for name, other in others:
        log += [f"{name}: {CAUSES.get(other.code, other.code)}: {other.message}", *other.log]
    raise HostError(error.code, f"{first}: {error.message}", log, outcome)


class _Conversation:
    """One exchange with bootstrap.sh. `outcome` is None until the host may have been changed. `shared`: where sudo's password is
    that of other hosts too."""

    def __init__(
        self,
        verb: str,
        running: Running,
        sudo: Sudo | None,
        cleaner: Cleaner,
        progress: Progress,
        idle_s: float,
        host: str,
        shared: SharedPassword | None,
    ):
        self._verb = verb
        self._running = running
        self._sudo = sudo
        self._cleaner = cleaner
        self._progress = progress
        self._idle_s = idle_s
        self._host = host
        self._shared = shared
        self._giving: asyncio.Task[None] | None = None
        self._is_shared = False  # it has begun to be given with regard to other hosts
        self._not_given = ""  # why
        self._start = asyncio.timeout(READY_TIMEOUT_S)
        self._silence: asyncio.Timeout | None = None  # while the host is at work
        self._began_at = 0.0
        self._question: asyncio.TimerHandle | None = None
        self._received = 0  # bytes
        self._log: deque[bytes] = deque(maxlen=_LOG_LINES)  # cleaned only when shown: a host may print more than that costs
        self._latest = b""
        self._showing: asyncio.TimerHandle | None = None
        self._output_lines, self._error_lines = Lines(_LONGEST_EVENT), Lines(_LONGEST_LOG_LINE)
        self._output = self._lines_of_output()
        self._errors = asyncio.create_task(self._read_errors())
        self.outcome: Outcome | None = None
        self._exit_code: int | None = None

    async def until_ready(self) -> None:
        last = b""  # nologin and forced commands print there
        is_ready = False
        try:
            async with self._start:
                async for line in self._output:
                    if b'"ready"' in line:
                        is_ready = True
                        return
                    if b'"recorded"' in line and self._sudo:
                        raise HostError("sudo", self._sudo.recorded())
                    last = line[:_LONGEST_LOG_LINE].strip() or last
                code = await self._running.wait()
                await asyncio.wait([self._errors], timeout=1)
        except TimeoutError:
            raise HostError("unreachable", self._stalled(), self._log_lines()) from None
        finally:
            self._cancel_question()
            if self._giving:
                self._giving.cancel()
            if self._shared and self._sudo and self._is_shared:
                is_refused = not is_ready and self._sudo.is_wrong(self._log_lines())
                self._shared.end(self, self._host, is_accepted=is_ready and self._giving is not None, is_refused=is_refused)
        log = self._log_lines()
        if self._sudo and self._not_given:
            raise HostError("sudo", f"the password of {self._sudo.key} was not given: {self._not_given}; {_LOCKS_OUT}")
        if self._sudo and self._sudo.has_begun and code != LOST:
            raise HostError("sudo", self._sudo.refusal(log or [self._shown(last)], code, self._shown), log[:-1])
        output = "; ".join(filter(None, [self._shown(last), *log[-1:]])) or "it gave no reason"
        raise HostError("unsupported", f"the host does not run sh: {output}")

    def _stalled(self) -> str:
        message = f"the login succeeded and no command ran within {READY_TIMEOUT_S:.0f} s"
        if waiting := self._shown(self._error_lines.rest) or self._shown(self._output_lines.rest[:_LONGEST_LOG_LINE]):
            return f'{message}; it waits after "{waiting}"'
        if self._sudo and self._sudo.has_begun:
            return f"{message}; sudo may be waiting for a name server, where /etc/hosts lacks the host's own name"
        return message

    async def work(self, archive: Archive) -> Outcome:
        """Sends the archive and reads until the end. Each line from the host, and each chunk that it takes, shows that it is
        alive."""
        outcome = self.outcome = Outcome()
        self._began_at = asyncio.get_running_loop().time()
        silence = asyncio.timeout(self._idle_s)
        try:
            async with silence:
                self._silence = silence
                await self._send(archive)
                async for line in self._output:
                    outcome.add(line, self._cleaner)
                    if outcome.has_result:
                        break
                if self._received > _MOST_OUTPUT:
                    await self._running.stop()
                elif not outcome.has_result:
                    self._exit_code = await self._running.wait()
        except TimeoutError:
            if not silence.expired():
                raise
            if self._received <= _MOST_OUTPUT:  # else its errors are read no more
                raise self._given_up(outcome) from None
        finally:
            self._silence = None
        if outcome.has_result:
            try:
                async with asyncio.timeout(_EXIT_TIMEOUT_S):
                    self._exit_code = await self._running.wait()
            except TimeoutError:  # something it started still holds its output; the result was complete
                await self._running.stop()
        await asyncio.wait([self._errors], timeout=1)
        return outcome

    def explained(self, outcome: Outcome) -> Outcome:
        """Raises the cause where the converge program gave no answer. Only its result says that it did its work."""
        code = self._exit_code
        if outcome.is_absent or outcome.has_result or (outcome.needs and code == 0):
            return outcome
        log = self._log_lines()
        left = _LEFT.get(self._verb, _NOTHING_LEFT)
        if self._received > _MOST_OUTPUT:
            message = f"the host printed more than {_MOST_OUTPUT >> 20} MB while `{self._verb}` ran, and was stopped; {left}"
            raise HostError("flood", message, log, outcome)
        if code == LOST:
            message = f"the connection broke while `{self._verb}` ran; the host may have rebooted or lost its network; {left}"
            raise HostError("unreachable", message, log, outcome)
        if code is not None and (name := _signal_of(code)):
            message = f"`{self._verb}` was ended on the host by {name}: it shut down, or somebody ended it; {left}"
            raise HostError("stopped", message, log, outcome)
        if code == _CANNOT_UNPACK:
            text = " ".join(log)
            cause = "disk-full" if "No space left" in text or "quota" in text else "no-write"
            if "gzip: " in text and "not found" in text:
                raise HostError("unsupported", "the host has no gzip; install it", log, outcome)
            raise HostError(cause, log[-1] if log else "the bundle could not be unpacked on the host", log[:-1], outcome)
        if code == _DAMAGED and log:
            raise HostError("damaged", log[-1], log[:-1], outcome)
        message = f"the converge program ended with code {code} and no result"
        for line in log:
            for cause, pattern, fix in _DENIED:
                if pattern.search(line):
                    raise HostError(cause, f"{message}: {line}; {fix}", log, outcome)
        if self._verb in ("check", "remove"):
            message += "; the host's own copy of it may be damaged, and the next `up` places it again"
        raise HostError("internal", message, log, outcome)

    def stopped(self) -> HostError:
        seconds = asyncio.get_running_loop().time() - self._began_at
        message = f"`{self._verb}` was stopped after {seconds:.0f} s{self._at_last()}; {_LEFT.get(self._verb, _NOTHING_LEFT)}"
        return HostError("stopped", message, outcome=self.outcome)

    def _given_up(self, outcome: Outcome) -> HostError:
        is_late = asyncio.get_running_loop().time() >= self._ends_at()
        what = f"was not finished after {_duration(self._ends_at() - self._began_at)}"
        limit = f"{_LONGEST_VERB} times `idleTimeout` of gpu-fleet:ssh is this limit"
        if not is_late:
            what = f"printed nothing for {_duration(self._idle_s)}"
            limit = "`idleTimeout` of gpu-fleet:ssh sets this limit"
        message = f"`{self._verb}` {what}{self._at_last()}, and was stopped; {_LEFT.get(self._verb, _NOTHING_LEFT)}; {limit}"
        return HostError("stopped" if is_late else "silent", message, self._log_lines()[:-1], outcome)

    def _ends_at(self) -> float:
        return self._began_at + _LONGEST_VERB * self._idle_s

    def _at_last(self) -> str:
        log = self._log_lines()
        return f' (its last line: "{log[-1]}")' if log else ""

    async def _send(self, archive: Archive) -> None:
        with contextlib.suppress(ConnectionError):  # the command ended early: its output explains why
            for chunk in itertools.chain([BOOTSTRAP], archive.chunks()):
                self._running.stdin.write(chunk)
                await self._running.stdin.drain()
                self._is_alive()

    async def _lines_of_output(self) -> AsyncIterator[bytes]:
        lines = self._output_lines
        while data := await self._running.stdout.read(_CHUNK):
            if self._is_flood(data):
                return
            ended = lines.feed(data)
            if ended:
                self._is_alive()
            for line in ended:
                yield line
        if lines.rest:
            yield lines.rest

    async def _read_errors(self) -> None:
        """Progress for people, line by line, and before it the questions of sudo, which end without a newline."""
        lines = self._error_lines
        while data := await self._running.stderr.read(_CHUNK):
            if self._is_flood(data):
                return
            ended = lines.feed(data)
            if self.outcome is not None:
                if ended:
                    self._is_alive()
                self._add_to_log(ended[-_LOG_LINES:])
                continue
            for line in ended:
                if self._sudo and self._sudo.begins(line):
                    self._log.clear()
                else:
                    self._add_to_log([line])
            self._look_for_question()
        self._add_to_log([lines.rest])

    def _look_for_question(self) -> None:
        self._cancel_question()
        if self._sudo and self._sudo.is_prompt(self._error_lines.rest):
            self._answer()
        elif self._sudo and self._sudo.may_ask(self._error_lines.rest):
            self._question = asyncio.get_running_loop().call_later(QUIET_S, self._answer)

    def _cancel_question(self) -> None:
        if self._question:
            self._question.cancel()

    def _answer(self) -> None:
        assert self._sudo, "nothing else is answered"
        answer = self._sudo.answer(self._error_lines.take_rest())
        if answer is None:
            self._running.interrupt()
        else:
            self._giving = asyncio.create_task(self._give(answer, is_first=self._giving is None))

    async def _give(self, answer: bytes, *, is_first: bool) -> None:
        if self._shared and is_first and self._sudo and self._sudo.is_of_directory:
            self._is_shared = True
            self._start.reschedule(None)  # other hosts may be first
            self._not_given = await self._shared.begin(self)
            self._start.reschedule(asyncio.get_running_loop().time() + READY_TIMEOUT_S)
        if self._not_given:
            self._running.interrupt()
            return
        self._log.clear()  # the lecture
        self._running.stdin.write(answer)

    def _is_flood(self, data: bytes) -> bool:
        """Whether the host has printed so much that it is stopped: it never falls silent."""
        self._received += len(data)
        if self._received <= _MOST_OUTPUT:
            return False
        with contextlib.suppress(OSError):
            self._running.stdin.close()
        return True

    def _is_alive(self) -> None:
        if self._silence is not None and not self._silence.expired():
            self._silence.reschedule(min(asyncio.get_running_loop().time() + self._idle_s, self._ends_at()))

    def _add_to_log(self, lines: Iterable[bytes]) -> None:
        lines = [line for line in lines if line.strip()]
        self._log.extend(lines)
        if lines and self.outcome is not None:  # what the login prints before is not progress
            self._latest = lines[-1]
            if self._showing is None:
                self._show_latest()

    def _show_latest(self) -> None:
        self._showing = None
        if self._latest:
            self._progress(self._shown(self._latest))
            self._latest = b""
            self._showing = asyncio.get_running_loop().call_later(_BETWEEN_PROGRESS_S, self._show_latest)

    def _log_lines(self) -> list[str]:
        return [line for line in map(self._shown, self._log) if line]

    def _shown(self, line: bytes) -> str:
        return self._cleaner.message(line.decode(errors="replace"))

    def close(self) -> None:
        self._errors.cancel()
        self._cancel_question()
        if self._showing:
            self._showing.cancel()
        with contextlib.suppress(OSError):
            self._running.stdin.close()


def _signal_of(code: int) -> str:
    """The name of the signal that ended a command, empty where none did: a shell adds 128 to it, Python negates it."""
    number = -code if code < 0 else code - _BY_SIGNAL
    return signal.Signals(number).name if number in {signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM} else ""


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:g} s"


def start_command(verb: str, place: Place, archive: Archive, artifacts: str = "") -> list[str]:
    """What reads BOOTSTRAP and the archive from standard input. `artifacts`: a directory of the host that already has them."""
    size, bootstrap_size = str(archive.size), str(len(BOOTSTRAP))
    return ["sh", "-c", _START, "gpu-fleet", verb, place.prefix, place.stack, place.instance, size, artifacts, bootstrap_size]
