"""The values of this host: defaults of the bundle, settings of the stack, facts of the probes; later ones override earlier
ones."""

from __future__ import annotations

import os
import re
from typing import Iterable, Sequence

from .disk import sha256, sha256_of
from .errors import Failure
from .host import Host
from .manifest import Part
from .programs import lines_of, pairs, read, read_or_empty, text

_LINE = re.compile("[A-Za-z_][A-Za-z0-9_]*=[^\x00-\x1f\x7f]*")
_IDENTITY = re.compile("GPU_FLEET_(INSTANCE|DATACENTER|CLUSTER)")
_UNREAD = re.compile("GPU_FLEET_(STACK|PULL_[A-Z]*)")  # by any service
_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_SPECIAL, _ESCAPED = re.compile(r'["\\$`]'), r"\\\g<0>"
ONE = "setting/"
_HEADER = "# Written by gpu-fleet from the stack file and the facts of this host; the next apply overwrites changes made here."


def is_setting(line: str) -> bool:
    """A line break or another control character would be read differently by sh and by systemd."""
    return bool(_LINE.fullmatch(line))


def encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


class Settings:
    """`text`: the settings of the envelope, or without one those of the last apply, as they are recorded. `facts`: lines of the
    probes, in `check` and `remove` those of the last apply."""

    def __init__(self, host: Host) -> None:
        if host.envelope:
            lines = sorted(lines_of(read_or_empty(f"{host.envelope}/settings")), key=encode)
            self.text = "".join(f"{line}\n" for line in lines)
        else:
            self.text = read_or_empty(f"{host.state}/settings")
        for line in lines_of(self.text):
            if not is_setting(line):
                raise Failure(
                    "internal", f"setting {line.split('=', 1)[0]}: expected NAME=value on one line, without control characters"
                )
        self.settings_digest = sha256(encode(self.text))
        self.digest = _digest(host)
        self._defaults = lines_of(read(f"{host.bundle}/settings"))
        self._own = [f"GPU_FLEET_PREFIX={host.prefix}"]
        self.facts: list[str] = []
        if host.verb in ("check", "remove"):
            self.facts = lines_of(read_or_empty(f"{host.state}/facts"))
        self.merge()

    def merge(self) -> None:
        self._values: dict[str, str] = {}
        for line in (*self._defaults, *lines_of(self.text), *self._own, *self.facts):
            name, _, value = line.partition("=")
            self._values[name] = value
        names = sorted(self._values, key=lambda name: encode(f"{name}={self._values[name]}"))
        self._quoted = [(name, f'{name}="{_SPECIAL.sub(_ESCAPED, self._values[name])}"\n') for name in names]

    def get(self, name: str) -> str | None:
        return self._values.get(name)

    def values(self) -> dict[str, str]:
        return dict(self._values)

    @property
    def environment_file(self) -> bytes:
        """In double quotes, with four characters escaped, sh and systemd read the same."""
        return encode(_HEADER + "\n" + "".join(line for _, line in self._quoted))

    def cause(self, name: str) -> bytes:
        """`identity`: the lines whose change restarts only the units that read them. `settings`: all other lines that a service
        reads. `setting/NAME`: one line."""
        return _of_cause(name, [(_HEADER, f"{_HEADER}\n"), *self._quoted])

    def expand(self, text: str) -> str:
        """With each ${NAME} replaced by that setting. A bundle has no other text in ${}: gpu_fleet/host/bundle.py."""
        return _REFERENCE.sub(lambda match: self._values.get(match.group(1), ""), text)

    def allows(self, part: Part, *, known: bool = False) -> bool:
        """Do the part's `when` conditions hold? With `known`, a name without a value yet does not count."""
        for name, allowed in part.when:
            value = self._values.get(name)
            if value is None and known:
                continue
            if not value or value not in allowed:
                return False
        return True

    def facts_by_name(self) -> dict[str, str]:
        return pairs(join(self.facts))


def changed_causes(path: str, settings: Settings) -> list[str]:
    """Which of the causes `settings`, `identity` and `setting/NAME` does the environment file, as it is now, differ in?"""
    lines = [(line.partition("=")[0], line) for line in read_or_empty(path).splitlines(keepends=True)]
    changed = [cause for cause in ("settings", "identity") if _of_cause(cause, lines) != settings.cause(cause)]
    return changed + [f"{ONE}{name}" for name in changed_names(path, settings.environment_file)]


def _of_cause(cause: str, lines: Sequence[tuple[str, str]]) -> bytes:
    """`lines`: of an environment file, with their names."""
    if cause.startswith(ONE):
        return encode("".join(line for name, line in lines if name == cause[len(ONE) :]))
    if cause == "identity":
        return encode("".join(line for name, line in lines if _IDENTITY.fullmatch(name)))
    return encode("".join(line for name, line in lines if not _IDENTITY.fullmatch(name) and not _UNREAD.fullmatch(name)))


def changed_names(path: str, new: bytes) -> list[str]:
    """The names of the settings that differ."""
    old, now = pairs(read_or_empty(path)), pairs(text(new))
    differing = {name for name in {*old, *now} if old.get(name) != now.get(name)}
    return sorted(name for name in differing if is_setting(f"{name}="))


def _digest(host: Host) -> str:
    if host.envelope and os.path.isfile(f"{host.envelope}/bundle.tar"):
        return sha256_of(f"{host.envelope}/bundle.tar")
    recorded = lines_of(read_or_empty(f"{host.state}/digest"))
    return recorded[0] if recorded else sha256_of(f"{host.bundle}/manifest")


def join(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
