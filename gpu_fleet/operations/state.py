"""What the state says of hosts before a run, and what a killed run left open in it.

Hosts are found as they are (`apply` converges), so losing what a run did to those in the state costs nothing. A host that is not
in it yet would be forgotten, and never be cleaned when it leaves the stack file: while a run brings one up, every step is saved,
and what was being created when the run was killed is kept as a host that failed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from gpu_fleet.operations.engine import OperationError, error_of, pulumi
from gpu_fleet.stackfile.config import HostSpec

HOST = "gpu-fleet:host:Host"
_KILLED = "a run was killed while it brought up this host; the next `up` finishes it"


def exported(stack: str) -> dict[str, Any]:
    """As `pulumi stack export` prints it, with secrets encrypted. Raises OperationError."""
    done = pulumi("stack", "export", "--stack", stack)
    if done.returncode != 0:
        raise OperationError(error_of(done))
    loaded: dict[str, Any] = json.loads(done.stdout)
    return loaded


def resources_of(state: Mapping[str, Any]) -> list[dict[str, Any]]:
    return (state.get("deployment") or {}).get("resources") or []


def has_all(state: Mapping[str, Any], hosts: Iterable[HostSpec]) -> bool:
    """Whether the state has each host under its name and at its address."""
    known = {(one["inputs"].get("host"), _place(one["inputs"])) for one in resources_of(state) if one["type"] == HOST}
    return all((host.name, host.prefix if host.connection == "local" else host.address) in known for host in hosts)


def pending(state: Mapping[str, Any], what: str) -> dict[str, dict[str, Any]]:
    """By URN, the resources on which a killed run was at work. `what`: creating, updating, deleting."""
    found = (state.get("deployment") or {}).get("pending_operations") or []
    return {one["resource"]["urn"]: one["resource"] for one in found if one["type"] == what}


def save(stack: str, state: Mapping[str, Any]) -> None:
    """Raises OperationError."""
    done = pulumi("stack", "import", "--stack", stack, stdin=json.dumps(state))
    if done.returncode != 0:
        raise OperationError(error_of(done))


def _place(inputs: Mapping[str, Any]) -> str:
    connection = inputs.get("connection") or {}
    return str(connection.get("address") or connection.get("prefix") or "")


def failed_host(creating: Mapping[str, Any]) -> dict[str, Any]:
    """A host whose creation a killed run left open, as a resource that failed, which the next `up` brings up, or removes: Pulumi
    would warn of it for ever, and forget it when it leaves the stack file."""
    outputs = {"facts": {}, "drift": [], "address": _place(creating["inputs"])}
    return {**creating, "id": creating["inputs"]["host"], "outputs": outputs, "initErrors": [_KILLED]}
