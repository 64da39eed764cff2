"""What to do on a host: bring it to a bundle, say what that would change, look for drift, take everything away. Knows no Pulumi.

Every verb is one short command whose arguments hold no secret. It says that it is ready, takes bootstrap.sh and an archive on
standard input (bundle, settings, secrets, artifacts), and runs the converge program, whose JSON lines are read here. Standard
input stays open while that runs: when it closes, because we stop or because we are gone, the work ends too.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from provider.envelope import Archive, Artifacts, Compressed, Envelope, Members
from provider.transport import Running, Session, Transport, TransportError

# All that sudo writes to the host's log: the program itself comes by standard input. `dd` reads not a byte too many, as busybox's
# `head` would.
_START: Final = """echo '{"event":"ready"}'; eval "$(dd bs=1 count="$7" 2>/dev/null)\""""
BOOTSTRAP: Final = Path(__file__).with_name("bootstrap.sh").read_bytes()
_CANNOT_UNPACK: Final = 10
_DAMAGED: Final = 11
_NOTHING_INSTALLED: Final = 3

# What converge and the transports give as causes, in the words of the one line that people see first.
CAUSES: Final[Mapping[str, str]] = {
    "unreachable": "unreachable",
    "host-key": "host key",
    "auth": "auth",
    "sudo": "sudo",
    "no-driver": "no driver",
    "gpu-count": "GPU count",
    "download": "download",
    "checksum": "checksum",
    "disk-full": "disk full",
    "no-write": "no write permission",
    "port-taken": "port taken",
    "service-failed": "service did not start",
    "unsupported": "not supported",
    "locked": "another run is at work",
    "other-stack": "belongs to another stack",
    "other-instance": "has another name",
    "damaged": "damaged",
    "bundle": "bundle",
    "stopped": "stopped",
    "held-back": "held back",
    "internal": "internal error",
}

READY_TIMEOUT_S = 25.0  # from the login to the first line; sudo may ask a slow directory server, or for a host's own name
_EXIT_TIMEOUT_S = 10.0  # from the result to the end of the command
_SUDO_PROMPT = "gpu-fleet asks for the sudo password:"
_LOG_LINES = 20
_SHA256 = re.compile(r"[0-9a-f]{64}")
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


@dataclass
class PartReport:
    status: str
    changes: list[str] = field(default_factory=list)
    drift: list[str] = field(default_factory=list)
    error: Mapping[str, Any] | None = None


@dataclass
class Outcome:
    """What the converge program told. `is_absent`: nothing of ours is on the host. `renamed_from`: the name
    in the host's own record when this run came to give it another one. `is_first`: the host had no record of ours."""

    facts: dict[str, str] = field(default_factory=dict)
    parts: dict[str, PartReport] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)  # output that is no JSON: the answer to `needs`
    result: Mapping[str, Any] | None = None
    is_absent: bool = False
    renamed_from: str = ""
    is_first: bool = False

    def add(self, line: str) -> None:
        try:
            event = json.loads(line)
            kind = event["event"]
        except (ValueError, TypeError, KeyError):
            self.lines.append(line)
            return
        match kind:
            case "part":
                report = PartReport(event["status"], event.get("changes", []), event.get("drift", []), event.get("error"))
                self.parts[event["part"]] = report
            case "facts":
                self.facts.update(event["facts"])
            case "result":
                self.result = event
            case "absent":
                self.is_absent = True
            case "renamed":
                self.renamed_from = event["from"]
            case "first":
                self.is_first = True

    def drift(self) -> list[str]:
        return [f"{name}: {line}" for name, report in self.parts.items() for line in report.drift]

    def changes(self) -> list[str]:
        return [f"{name}: {line}" for name, report in self.parts.items() for line in report.changes]

    def failures(self) -> dict[str, Mapping[str, Any]]:
        return {name: report.error for name, report in self.parts.items() if report.error}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a host is: `connection` as in the schema's type Connection. `stack`: who it may belong to, names separated by blanks.
    `instance`: who it is. Where its own record names another one it is neither checked nor removed."""

    connection: Mapping[str, Any]
    stack: str = ""
    instance: str = ""

    @property
    def is_local(self) -> bool:
        return bool(self.connection["kind"] == "local")

    @property
    def prefix(self) -> str:
        return self.connection.get("prefix") or ""


Progress = Callable[[str], None]


class Hosts:
    """Every host of a run. Each method raises HostError; a cancelled one has stopped the work on the host first."""

    def __init__(
        self,
        local: Transport,
        ssh: Callable[[], Transport],
        *,
        sudo_password: str | None = None,
        artifacts: Path | None = None,
        hide: Iterable[str] = (),
    ):
        """`ssh`: makes the transport when the first host needs it. `artifacts`: directory of files named by sha256 that hosts may
        need. `hide`: what no message may show."""
        self._local, self._ssh = local, cache(ssh)
        self._sudo_password = sudo_password
        self._artifacts = Artifacts(artifacts) if artifacts else None
        self._hide = tuple(sorted(hide, key=len, reverse=True))

    async def apply(self, place: Place, envelope: Envelope, progress: Progress) -> Outcome:
        members: dict[str, bytes | Compressed] = dict(envelope.members())
        async with self._session(place) as session:
            if self._artifacts and not place.is_local:
                needed = await self._converse(session, place, "needs", members, progress)
                digests = [line for line in needed.lines if _SHA256.fullmatch(line)]
                members |= {f"artifacts/{digest}": await _artifact(self._artifacts, digest) for digest in digests}
            return self._judged(await self._converse(session, place, "apply", members, progress))

    async def plan(self, place: Place, envelope: Envelope, progress: Progress) -> Outcome:
        """What `apply` would change. Failures are part of the answer here, not an error."""
        async with self._session(place) as session:
            return await self._converse(session, place, "plan", envelope.members(), progress)

    async def check(self, place: Place, progress: Progress) -> Outcome:
        """How the host differs from what was applied last; `is_absent` where nothing was."""
        async with self._session(place) as session:
            outcome = await self._converse(session, place, "check", {}, progress)
            return outcome if outcome.is_absent else self._judged(outcome)

    async def remove(self, place: Place, progress: Progress) -> Outcome:
        async with self._session(place) as session:
            outcome = await self._converse(session, place, "remove", {}, progress)
            return outcome if outcome.is_absent else self._judged(outcome)

    @contextlib.asynccontextmanager
    async def _session(self, place: Place) -> AsyncIterator[Session]:
        transport = self._local if place.is_local else self._ssh()
        try:
            async with transport.session(dict(place.connection)) as session:
                yield session
        except TransportError as error:
            raise HostError(error.code, self._clean(error.message)) from None

    async def _converse(self, session: Session, place: Place, verb: str, members: Members, progress: Progress) -> Outcome:
        artifacts = str(self._artifacts.directory) if self._artifacts and place.is_local and verb == "apply" else ""
        archive = Archive(members)
        argv = start_command(verb, place, archive, artifacts)
        if session.sudo:
            how = ["-S", "-p", _SUDO_PROMPT] if self._sudo_password else ["-n"]
            argv = ["sudo", *how, "--", *argv]
        running = await session.start(argv)
        sudo_password = self._sudo_password if session.sudo else None
        talk = _Talk(running, session.sudo, sudo_password, self._clean, progress)
        try:
            await talk.until_ready()
            await talk.send(archive)
            outcome = await talk.listen()
        except BaseException as error:
            await asyncio.shield(running.stop())
            if isinstance(error, asyncio.CancelledError) and talk.outcome is not None:
                raise HostError(
                    "stopped", "the work on the host was stopped; the next run finishes it", outcome=talk.outcome
                ) from None
            raise
        finally:
            talk.close()
        return self._explained(verb, outcome, talk)

    def _explained(self, verb: str, outcome: Outcome, talk: _Talk) -> Outcome:
        """Turns what is no answer of the converge program into a cause. Only its result says that it did what was asked; `needs`
        prints lines instead."""
        if outcome.is_absent or outcome.result is not None or (verb == "needs" and talk.exit_code == 0):
            return outcome
        log = list(talk.log)
        if talk.exit_code == -1:
            raise HostError("unreachable", "the connection broke while the host was being worked on", log, outcome)
        if talk.exit_code == _CANNOT_UNPACK:
            text = " ".join(log)
            code = "disk-full" if "No space left" in text or "quota" in text else "no-write"
            if "gzip: " in text and "not found" in text:
                raise HostError("unsupported", "the host has no gzip; install it", log, outcome)
            raise HostError(code, log[-1] if log else "the bundle could not be unpacked on the host", log[:-1], outcome)
        if talk.exit_code == _DAMAGED:
            raise HostError("damaged", log[-1], log[:-1], outcome)
        message = f"the converge program ended with code {talk.exit_code} and no result"
        if verb in ("check", "remove"):
            message += "; the host's own copy of it may be damaged, and the next `up` places it again"
        raise HostError("internal", message, log, outcome)

    def _judged(self, outcome: Outcome) -> Outcome:
        """Raises for the parts that failed: the first is the cause, the others are told below it."""
        failures = outcome.failures()
        if not failures:
            return outcome
        (first, error), *others = failures.items()
        log = list(error.get("log", ()))
        for name, other in others:
            log += [f"{name}: {CAUSES.get(other['code'], other['code'])}: {other['message']}", *other.get("log", ())]
        raise HostError(error["code"], self._clean(f"{first}: {error['message']}"), [self._clean(line) for line in log], outcome)

    def _clean(self, text: str) -> str:
        for secret in self._hide:
            text = text.replace(secret, "[secret]")
        return text


async def _artifact(artifacts: Artifacts, digest: str) -> Compressed:
    try:
        return await artifacts.compressed(digest)
    except FileNotFoundError:
        missing = f"the host needs the file with sha256 {digest}, which is not in {artifacts.directory}"
        raise HostError("download", f"{missing}; `make artifacts` fetches it") from None


class _Talk:
    """One conversation with bootstrap.sh. `outcome` is None until the host may have been changed."""

    def __init__(
        self, running: Running, is_sudo: bool, sudo_password: str | None, clean: Callable[[str], str], progress: Progress
    ):
        self._running = running
        self._is_sudo = is_sudo
        self._sudo_password = sudo_password
        self._clean = clean
        self._progress = progress
        self._prompts = 0
        self._is_wrong_password = False
        self._errors = asyncio.create_task(self._read_errors())
        self.log: deque[str] = deque(maxlen=_LOG_LINES)
        self.outcome: Outcome | None = None
        self.exit_code: int | None = None

    async def until_ready(self) -> None:
        last = b""  # nologin and forced commands speak there
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                while line := await self._running.stdout.readline():
                    if b'"ready"' in line:
                        return
                    last = line.strip() or last
                await self._running.wait()
                await asyncio.wait([self._errors], timeout=1)
        except TimeoutError:
            message = f"the host let us in and then said nothing for {READY_TIMEOUT_S:.0f} s"
            if self._is_sudo:
                message += "; sudo may ask a name server that does not answer, where /etc/hosts lacks the host's own name"
            raise HostError("unreachable", message, list(self.log)) from None
        if self._is_wrong_password:
            raise HostError("sudo", "the password of gpu-fleet:sudoPassword was refused")
        said = self.log[-1] if self.log else self._clean(last.decode(errors="replace")) or "it gave no reason"
        if "sudo" in said:
            raise HostError("sudo", said.removeprefix("sudo: ") + self._what_sudo_lacks(said))
        raise HostError("unsupported", f"the host does not run sh: {said}")

    async def send(self, archive: Archive) -> None:
        self.outcome = Outcome()
        with contextlib.suppress(ConnectionError):  # the command ended early: what it said tells why
            for chunk in itertools.chain([BOOTSTRAP], archive.chunks()):
                self._running.stdin.write(chunk)
                await self._running.stdin.drain()

    async def listen(self) -> Outcome:
        outcome = self.outcome
        assert outcome is not None, "after `send`"
        while outcome.result is None and (line := await self._running.stdout.readline()):
            outcome.add(self._clean(line.decode(errors="replace").rstrip("\n")))
        try:
            async with asyncio.timeout(_EXIT_TIMEOUT_S if outcome.result else None):
                self.exit_code = await self._running.wait()
        except TimeoutError:  # something it started still holds its output; the result was complete
            await self._running.stop()
        await asyncio.wait([self._errors], timeout=1)
        return outcome

    def close(self) -> None:
        self._errors.cancel()
        with contextlib.suppress(OSError):
            self._running.stdin.close()

    async def _read_errors(self) -> None:
        """Progress for people, line by line, and sudo's prompt, which ends without a newline."""
        rest = ""
        while data := await self._running.stderr.read(_CHUNK):
            *lines, rest = (rest + data.decode(errors="replace")).split("\n")
            for line in (*lines, rest):
                if _SUDO_PROMPT in line:
                    self._answer_sudo()
            rest = rest.replace(_SUDO_PROMPT, "")
            for line in lines:
                if line := self._clean(line.replace(_SUDO_PROMPT, "")).strip():
                    self.log.append(line)
                    if self.outcome is not None:  # what the login says before is no progress
                        self._progress(line)
        if rest.strip():
            self.log.append(self._clean(rest.strip()))

    def _what_sudo_lacks(self, said: str) -> str:
        if " tty" in said:
            return "; standard input brings the bundle, so exempt the login: `Defaults:LOGIN !requiretty` in sudoers"
        if "not found" in said.lower() or "unknown command" in said.lower():
            return "; install it, or let `user` be root"
        return "" if self._sudo_password else "; set gpu-fleet:sudoPassword, or let the login use sudo without one"

    def _answer_sudo(self) -> None:
        """Once: sudo asks again after a wrong password, and each wrong one may count towards a lock-out."""
        self._prompts += 1
        if self._prompts == 1:
            self._running.stdin.write(f"{self._sudo_password}\n".encode())
        else:
            self._is_wrong_password = True
            self._running.stdin.close()


def start_command(verb: str, place: Place, archive: Archive, artifacts: str = "") -> list[str]:
    """What takes BOOTSTRAP and the archive on its standard input. `artifacts`: a directory of the host that has them already."""
    size, bootstrap_size = str(archive.size), str(len(BOOTSTRAP))
    return ["sh", "-c", _START, "gpu-fleet", verb, place.prefix, place.stack, place.instance, size, artifacts, bootstrap_size]
