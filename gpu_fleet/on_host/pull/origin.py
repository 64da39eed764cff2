"""Where publications come from: a file server, or a directory of this host."""

from __future__ import annotations

import os
from typing import NamedTuple

from ..converge.disk import create, sha256_of
from ..converge.errors import Failure
from ..converge.fetch import TooLarge, fetch


class Refused(Failure):
    """What pull mode does not do, and why."""

    def __init__(self, why: str) -> None:
        super().__init__("refused", why)


class Origin(NamedTuple):
    """`url`: without a slash at its end; a directory as its path or file: URL."""

    url: str

    @property
    def directory(self) -> str:
        """Empty for a server."""
        return "" if self.url.startswith(("http://", "https://")) else self.url[len("file://") * self.url.startswith("file://") :]

    def fetch(self, name: str, path: str, most: int, sha256: str = "") -> None:
        """`most`: bytes, since an origin must not fill this disk. Raises Failure."""
        url = f"{self.url}/{name}"
        try:
            if self.directory:
                self._copy(name, path, most)
            else:
                fetch(url, path, most, f"still downloading {name}")
        except TooLarge:
            raise Refused(f"{url} is larger than the limit of {most} bytes") from None
        found = sha256_of(path) if sha256 else ""
        if found != sha256:
            os.unlink(path)
            raise Refused(f"{url} is not what was published: its sha256 is {found}, not {sha256}; it was not run")

    def _copy(self, name: str, path: str, most: int) -> None:
        source = f"{self.directory}/{name}"
        try:
            if os.path.getsize(source) > most:
                raise TooLarge
            create(path, source)
        except OSError as error:
            raise Failure.of(f"cannot get {self.url}/{name}", error) from error
