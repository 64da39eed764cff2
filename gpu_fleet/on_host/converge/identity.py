"""Who a host is, by its own record. Two stacks that manage one host would undo each other's changes with every run, and a renamed
host still exists under its new name."""

from __future__ import annotations

import os

from .errors import Failure
from .events import emit
from .host import Host
from .programs import pairs, read_or_empty
from .settings import Settings


def refuse_others(host: Host, settings: Settings | None) -> None:
    """Unless the record has this stack and, where one was given, this instance."""
    stack = read_or_empty(f"{host.state}/stack").split("\n")[0]
    if host.stack and stack and stack not in host.stack.split():
        raise Failure(
            "other-stack",
            f"this host belongs to stack {stack}, not to {host.stack.split()[0]}; remove it from that stack first, or remove "
            "it from this stack's inventory",
        )
    here = _instance(host)
    if not host.instance or not here or here in host.instance.split():
        return
    if host.verb == "apply" and settings is not None:
        report_rename(host, settings)  # not done: whoever asked decides whether it is one
    raise Failure(
        "other-instance",
        f"this machine's own record says that it is {here}, not {host.instance}; if that is right, remove {host.instance} from "
        "the stack file, otherwise correct its address there",
    )


def report_rename(host: Host, settings: Settings) -> None:
    """That this run gives the host another name, or its first. Before a probe can end the run: the removal of the old name
    depends on it."""
    if not os.path.isfile(f"{host.state}/settings"):
        emit({"event": "first"})
    here, name = _instance(host), settings.get("GPU_FLEET_INSTANCE")
    if here and name is not None and here != name:
        emit({"event": "renamed", "from": here, "to": name})


def _instance(host: Host) -> str:
    """The name this host was last applied with."""
    return pairs(read_or_empty(f"{host.state}/settings")).get("GPU_FLEET_INSTANCE", "")
