"""The host program. The shell script `converge` beside the manifest starts it, with a Python that it has found."""

from __future__ import annotations

import os

from . import proxies
from .events import say
from .host import Host
from .programs import end_on_signals
from .verbs import Run

_USAGE = (
    "usage: sh converge needs|plan|apply|check|remove --prefix DIR [--envelope DIR] [--artifacts DIR] [--stack NAME] "
    "[--instance NAME] [--metrics FILE]"
)
_OPTIONS = ("prefix", "envelope", "artifacts", "stack", "instance", "metrics")
_VERBS = ("needs", "plan", "apply", "check", "remove")


def _host(arguments: list[str], bundle: str) -> Host | None:
    verb, *rest = arguments or [""]
    values = {}
    for at in range(0, len(rest), 2):
        name = rest[at][2:]
        if rest[at][:2] != "--" or name not in _OPTIONS or at + 1 == len(rest):
            return None
        values[name] = rest[at + 1]
    if verb not in _VERBS:
        return None
    prefix = values.pop("prefix", "").rstrip("/")
    return Host(verb, bundle, prefix=prefix, owners=not prefix and os.geteuid() == 0, **values)


def main(arguments: list[str], bundle: str) -> int:
    """`bundle`: the directory that has the manifest."""
    end_on_signals()
    os.umask(0o022)
    # That of useradd and supervisord; that of whoever runs this may be shorter.
    os.environ["PATH"] = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin"
    host = _host(arguments, bundle)
    if host is None:
        say(_USAGE)
        return 2
    if host.prefix and not host.prefix.startswith("/"):
        say(f"converge: --prefix {host.prefix}: give an absolute path, or nothing for the host itself")
        return 2
    proxies.find(host.prefix)
    return Run(host).perform()
