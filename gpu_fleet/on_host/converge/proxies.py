"""The host's proxy settings: those of the login, which sudo and service managers drop, or of /etc/environment, where the host's
own tools find them."""

from __future__ import annotations

import os
import shlex

from .programs import read_or_empty

_NAMES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")
VARIABLES = (*_NAMES, *(name.upper() for name in _NAMES))


def find(prefix: str) -> None:
    """Sets those of /etc/environment unless the run has some already."""
    if any(os.environ.get(name) for name in VARIABLES):
        return
    for line in read_or_empty(f"{prefix}/etc/environment").split("\n"):
        name, _, value = (line[len("export ") :] if line.startswith("export ") else line).partition("=")
        if name in VARIABLES:
            if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
                value = value[1:-1]
            os.environ[name] = value


def for_sh() -> str:
    return "".join(f"export {name}={shlex.quote(os.environ[name])}\n" for name in VARIABLES if os.environ.get(name))
