"""How the entries of a host list, from wherever they come, become hosts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gpu_fleet.stackfile.entry import check_entry
from gpu_fleet.stackfile.hosts import PATHS, HostEntry, Ssh
from gpu_fleet.stackfile.hostspec import HostSpec
from gpu_fleet.stackfile.patterns import PATTERN_EXPECTED, Listed, PatternError, expand, is_pattern
from gpu_fleet.stackfile.problems import Location, Place, Problem, explain, first_causes, shown
from gpu_fleet.stackfile.values import ADDRESS_EXPECTED, address_problem, local_path

_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_LONGEST_HOST_NAME = 100  # label value and part of resource names; the longest name DNS allows would fill a screen
_SECRETS_OF_HOSTS = (
    "it is a secret of the stack: `pulumi config set --secret gpu-fleet:sudoPassword` for all hosts, gpu-fleet:sudoPasswords by "
    "host, or gpu-fleet:sshPrivateKey; "
    "password logins are not supported"
)


@dataclass
class HostList:
    """The hosts found so far, where each was named, and what is wrong with the rest."""

    ssh: Ssh
    base: Path  # directory of Pulumi.yaml
    problems: list[Problem]
    warnings: list[str]
    hosts: dict[str, HostSpec] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    _by_name: dict[str, str] = field(default_factory=dict)  # names in lower case -> as they are written

    def add_all(self, entries: Iterable[Listed]) -> None:
        for entry in entries:
            self._add(entry)

    def _add(self, listed: Listed) -> None:
        try:
            entry = HostEntry.model_validate(listed.values)
        except ValidationError as error:
            self.problems += [explain(cause, _schema(), listed.place, _SECRETS_OF_HOSTS) for cause in first_causes(error)]
            return
        found = [*check_entry(entry, listed), *self._check_addresses(entry, listed)]
        if found:
            self.problems += found
            return
        shared = self._shared(entry)
        for name, address in zip(listed.names, _addresses(entry, listed.names), strict=True):
            if twin := self._by_name.get(name.lower()):
                spelled = "" if twin == name else f" as {twin}, which is the same name to DNS and OpenSSH"
                what = f"the host {name} is already listed at {self.places[twin](())}{spelled}"
                self.problems.append(Problem(listed.place(()), what, "each host once", "remove one of the two, or rename it"))
                continue
            self._by_name[name.lower()] = name
            self.hosts[name] = HostSpec.model_construct(**{**shared, "name": name, "address": address})
            self.places[name] = listed.place

    def _shared(self, entry: HostEntry) -> dict[str, Any]:
        """What the hosts of one entry have in common."""
        is_local = entry.connection == "local"
        user = entry.user or self.ssh.user or ""
        sudo = next((answer for answer in (entry.sudo, self.ssh.sudo) if answer is not None), user != "root")
        key_file = entry.private_key_file or self.ssh.private_key_file
        resolved = {
            "port": entry.port or self.ssh.port,
            "user": "" if is_local else user,
            "prefix": str(self.local_path(entry.prefix)) if entry.prefix else "",
            "private_key_file": None if is_local else key_file,
            "bastion": None if is_local else entry.bastion or self.ssh.bastion,
            "sudo": not is_local and sudo,
        }
        paths = {name: self._on_this_machine(getattr(entry, name), words) for name, words in PATHS.items()} if is_local else {}
        return {**dict(entry), **resolved, **paths}

    def local_path(self, text: str) -> Path:
        return local_path(self.base, text)

    def _on_this_machine(self, value: Any, words: tuple[str, ...]) -> Any:
        """Paths of a local host, which start at the stack file: one, or several."""
        if isinstance(value, tuple):
            return tuple(str(self.local_path(path)) for path in value)
        return value if value is None or value in words else str(self.local_path(value))

    def _check_addresses(self, entry: HostEntry, listed: Listed) -> list[Problem]:
        names, place, key = listed.names, listed.place, () if entry.address is None else ("address",)
        try:
            addresses = _addresses(entry, names)
        except PatternError as error:
            is_ipv6 = address_problem((entry.address or "").strip("[]")) is None
            fix = "write an IPv6 address without brackets" if is_ipv6 else "correct the range"
            return [Problem(place(key), f'"{entry.address}": {error}', PATTERN_EXPECTED, fix)]
        if len(addresses) != len(names):
            count = "1 address" if len(addresses) == 1 else f"{len(addresses)} addresses"
            what = f'"{entry.address}" gives {count} for {len(names)} {"host" if len(names) == 1 else "hosts"}'
            is_range = is_pattern(entry.address or "")
            fix = "make both ranges equally long" if is_range else "write a pattern as long as the name's, such as 10.0.1.[1:16]"
            return [Problem(place(key), what, "one address per host", fix)]
        for address in addresses if entry.connection == "ssh" else ():
            if reason := address_problem(address):  # once: the other hosts of a pattern have the same error
                fix = (
                    "write `address`, or a name that DNS knows"
                    if entry.address is None
                    else "write the address alone: no user, no port, no URL, no /24"
                )
                return [Problem(place(key), f'"{address}" {reason}', ADDRESS_EXPECTED, fix)]
        return []


def _addresses(entry: HostEntry, names: tuple[str, ...]) -> tuple[str, ...]:
    if entry.connection == "local":
        return ("",) * len(names)
    return names if entry.address is None else expand(entry.address)


def entries_of(section: Mapping[str, object], place: Place, problems: list[Problem]) -> list[Listed]:
    """The entries of a `hosts` mapping, in the stack file or in a file of its own; bad keys go to `problems`."""
    entries = []
    for key, values in section.items():
        try:
            names = expand(str(key))
        except PatternError as error:
            problems.append(Problem(place((key,)), str(error), PATTERN_EXPECTED, "correct the range"))
            continue
        if not _HOST_NAME.fullmatch(names[-1]) or len(names[-1]) > _LONGEST_HOST_NAME:
            expected = f"letters, digits and . _ - between them, at most {_LONGEST_HOST_NAME} characters"
            what = f'"{names[-1]}" cannot be the name of a host'
            is_range = re.search(r"[{}*,]", names[-1])
            fix = (
                "write a range such as gpu-[001:016], or a line for each"
                if is_range
                else "rename it; write its address as `address`"
            )
            problems.append(Problem(place((key,)), what, expected, fix))
        elif isinstance(values, Mapping) or values is None:
            entries.append(Listed(names, values or {}, partial(_below, place, key)))
        else:
            is_address = isinstance(values, str) and address_problem(values) is None
            fix = f"write {{address: {values}}}" if is_address else "write {} when it has no values"
            problems.append(Problem(place((key,)), f"found {shown(values, key)}", "a mapping with the values of the host", fix))
    return entries


def _below(place: Place, key: str, location: Location) -> str:
    return place((key, *location))


@lru_cache(maxsize=1)
def _schema() -> dict[str, Any]:
    return HostEntry.model_json_schema()
