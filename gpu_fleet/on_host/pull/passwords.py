"""The secrets that a bundle needs of a host: from a file, from an earlier installation, or from the terminal; never from a
process's arguments or environment."""

from __future__ import annotations

import getpass
import os
from typing import Mapping, NamedTuple

from ..converge.disk import create
from ..converge.programs import read, read_or_empty
from .envelope import Envelope
from .origin import Refused


class Passwords(NamedTuple):
    """Paths; empty where none was given."""

    metrics_file: str
    logs_file: str
    directory: str

    def write(self, envelope: Envelope, settings: Mapping[str, str]) -> None:
        """Into the envelope. Raises Failure."""
        names = {fields[1] for fields in envelope.manifest if fields[0] == "secret"}
        found: dict[str, str] = {}
        for name in sorted(names, reverse=True):  # metrics-password before logs-password
            if name == "scrape-web-config":  # for parts that only hosts in push mode get
                continue
            found[name] = self._secret(name, envelope, settings, found)
            create(f"{envelope.path}/secrets/{name}", found[name].encode("utf-8", "surrogateescape"))

    def _secret(self, name: str, envelope: Envelope, settings: Mapping[str, str], found: Mapping[str, str]) -> str:
        kind, is_password, _ = name.partition("-password")
        file = {"metrics": self.metrics_file, "logs": self.logs_file}.get(kind, "")
        user, url = (settings.get(f"GPU_FLEET_{kind.upper()}_{what}", "") for what in ("USERNAME", "URL"))
        if name.endswith(("-bearer-token", "-client-key")):
            file = self.directory and f"{self.directory}/{name}"
        elif not is_password or kind not in ("metrics", "logs"):
            raise Refused(
                f"the bundle needs the secret {name}, which this installer does not know; use the installer published with it",
            )
        if file:
            return _of_file(file)
        if (
            kind == "logs"
            and is_password
            and user == settings.get("GPU_FLEET_METRICS_USERNAME")
            and found.get("metrics-password")
        ):
            return found["metrics-password"]  # one login for both is prompted for once
        before = read_or_empty(f"{envelope.kept.prefix}/etc/gpu-fleet/secrets/{name}").rstrip("\n")
        if before:
            return before
        if not is_password:
            raise Refused(f"the secret {name} is needed: give --secrets-directory DIR, with a file of that name in DIR")
        return _ask(f"Password of {user} at {url}: ")


def _of_file(path: str) -> str:
    try:
        found = read(path).rstrip("\n")
    except OSError:
        raise Refused(f"the password file {path} cannot be read") from None
    if not found:
        raise Refused(f"the password file {path} is empty")
    return found


def _ask(prompt: str) -> str:
    """Standard input may be the installer itself, so the terminal is read."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        raise Refused("a password is needed, and there is no terminal to prompt on: give --password-file FILE") from None
    found = getpass.getpass(prompt)
    if not found:
        raise Refused("no password was given")
    return found
