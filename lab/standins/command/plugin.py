"""The command package: version 1.2.1 of the official plugin, CopyFile excepted, which is deprecated there."""

from __future__ import annotations

from collections.abc import Sequence

from lab.standins import plugin
from lab.standins.command.local import LocalCommand, local_run
from lab.standins.command.remote import CopyToRemote, RemoteCommand


def main(arguments: Sequence[str]) -> int:
    package = plugin.Plugin("command", "1.2.1", [LocalCommand(), RemoteCommand(), CopyToRemote()], [local_run])
    return plugin.main(arguments, package)
