"""Known hosts files as OpenSSH reads them: a host is looked up by its address as it is written, and case does not matter."""

from __future__ import annotations

import re
from typing import Final

import asyncssh

_NAMES: Final = re.compile(r"^\s*(?:@\S+\s+)?[^|#@\s]\S*", re.MULTILINE)  # of lines that are not hashed
Trusted = tuple[list[asyncssh.SSHKey], list[asyncssh.SSHKey], list[asyncssh.SSHKey]]


class KnownHosts:
    def __init__(self, text: str = ""):
        """Raises ValueError when a line cannot be read."""
        if text.startswith("\ufeff"):
            raise ValueError("line 1 begins with a byte order mark: save the file as UTF-8 without one")
        self._hosts = asyncssh.import_known_hosts(_NAMES.sub(lambda match: match[0].lower(), text))

    def match(self, address: str, port: int) -> Trusted:
        """The host's keys, certificate authorities and revoked keys. Those of its port come before those of all ports."""
        keys, authorities, revoked, *_ = self._hosts.match(address.lower(), "", None if port == 22 else port)
        return list(keys), list(authorities), list(revoked)
