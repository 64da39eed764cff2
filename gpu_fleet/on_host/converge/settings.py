"""The values of this host: defaults of the bundle, settings of the stack, facts of the probes; later ones override earlier
ones."""

from __future__ import annotations

import os
import re
from typing import Iterable

from .disk import sha256, sha256_of
from .errors import Failure
from .host import Host
from .manifest import Part
from .programs import read, read_or_empty

_LINE = re.compile("[A-Za-z_][A-Za-z0-9_]*=[^\x00-\x1f\x7f]*")
_IDENTITY = re.compile("GPU_FLEET_(INSTANCE|DATACENTER|CLUSTER)")
_UNREAD = re.compile("GPU_FLEET_(STACK|PULL_[A-Z]*)")  # by any service
_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_SPECIAL = re.compile(r'["\\$`]')
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
            lines = sorted(_lines(read_or_empty(f"{host.envelope}/settings")), key=encode)
            self.text = "".join(f"{line}\n" for line in lines)
        else:
            self.text = read_or_empty(f"{host.state}/settings")
        for line in _lines(self.text):
            if not is_setting(line):
                raise Failure(
                    "internal", f"setting {line.split('=', 1)[0]}: expected NAME=value on one line, without control characters"
                )
        self.settings_digest = sha256(encode(self.text))
        self.digest = _digest(host)
        self._defaults = _lines(read(f"{host.bundle}/settings"))
        self._own = [f"GPU_FLEET_PREFIX={host.prefix}"]
        self.facts: list[str] = []
        if host.verb in ("check", "remove"):
            self.facts = _lines(read_or_empty(f"{host.state}/facts"))
        self.merge()

    def merge(self) -> None:
        self._values: dict[str, str] = {}
        for line in (*self._defaults, *_lines(self.text), *self._own, *self.facts):
            name, _, value = line.partition("=")
            self._values[name] = value
        names = sorted(self._values, key=lambda name: encode(f"{name}={self._values[name]}"))
        self._quoted = [(name, f'{name}="{_SPECIAL.sub(_escaped, self._values[name])}"\n') for name in names]

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
        if name.startswith(ONE):
            return encode("".join(line for key, line in self._quoted if key == name[len(ONE) :]))
        if name == "identity":
            return encode("".join(line for key, line in self._quoted if _IDENTITY.fullmatch(key)))
        read_by_services = (line for key, line in self._quoted if not _IDENTITY.fullmatch(key) and not _UNREAD.fullmatch(key))
        return encode(_HEADER + "\n" + "".join(read_by_services))

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
        return dict(_pair(line) for line in self.facts)


def changed_causes(path: str, settings: Settings) -> list[str]:
    """Which of the causes `settings`, `identity` and `setting/NAME` does the environment file, as it is now, differ in?"""
    lines = read_or_empty(path).splitlines(keepends=True)
    names = [(line.partition("=")[0], line) for line in lines]
    identity = "".join(line for name, line in names if _IDENTITY.fullmatch(name))
    others = "".join(line for name, line in names if not _IDENTITY.fullmatch(name) and not _UNREAD.fullmatch(name))
    found = {"settings": encode(others), "identity": encode(identity)}
    changed = [cause for cause, content in found.items() if content != settings.cause(cause)]
    return changed + [f"{ONE}{name}" for name in changed_names(path, settings.environment_file)]


def changed_names(path: str, new: bytes) -> list[str]:
    """The names of the settings that differ."""
    old = dict(_pair(line) for line in _lines(read_or_empty(path)))
    now = dict(_pair(line) for line in _lines(new.decode("utf-8", "surrogateescape")))
    differing = {name for name in {*old, *now} if old.get(name) != now.get(name)}
    return sorted(name for name in differing if is_setting(f"{name}="))


def _digest(host: Host) -> str:
    if host.envelope and os.path.isfile(f"{host.envelope}/bundle.tar"):
        return sha256_of(f"{host.envelope}/bundle.tar")
    recorded = _lines(read_or_empty(f"{host.state}/digest"))
    return recorded[0] if recorded else sha256_of(f"{host.bundle}/manifest")


def _escaped(match: re.Match[str]) -> str:
    return "\\" + match.group()


def _lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line]


def _pair(line: str) -> tuple[str, str]:
    name, _, value = line.partition("=")
    return name, value


def join(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
