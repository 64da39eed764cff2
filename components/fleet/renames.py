"""Hosts that have another name or address in the stack file than in the state: `gpu-007` at 10.0.1.7 is `node-007` there now.

The engine knows a resource by its name, so without an alias a rename is one host created and another one deleted. The provider
leaves the machine alone then too (gpu_fleet/provider/renames.py), but a preview could not say what happens. Source of both
functions that are invoked here: pulumi 3.259.0, pkg/resource/deploy/builtins.go, read 2026-11-22. They read the state as the last
run left it.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pulumi
from pulumi.runtime import invoke

from gpu_fleet.stackfile.hostspec import HostSpec
from gpu_fleet.stackfile.naming import type_token

_HOST = type_token("host", "Host")


@dataclass(frozen=True)
class Moves:
    """`old_names`: new name to old name, of each host that has another name at its old address. `left`: by host, the address that
    it had and no host has now. `moved`: hosts that have another address than before, or had one that another host has in the
    state too, as after a run that exchanged two by half."""

    old_names: Mapping[str, str]
    left: Mapping[str, str]
    moved: frozenset[str] = frozenset()

    @classmethod
    def of(cls, before: Mapping[str, str], now: Mapping[str, str]) -> Moves:
        """`before`, `now`: address by host. One that hosts share, behind different ports or bastions, names no machine."""
        taken = set(now.values())
        shared = {address for hosts in (before, now) for address, count in Counter(hosts.values()).items() if count > 1}
        gone = {address: name for name, address in before.items() if name not in now and address not in shared}
        left = {name: before[name] for name in now if before.get(name, now[name]) != now[name]}
        return cls(
            old_names={name: gone[address] for name, address in now.items() if name not in before and address in gone},
            left={name: address for name, address in left.items() if address not in taken},
            moved=frozenset(name for name in now if name in left or before.get(name) in shared),
        )


def moves(hosts: Iterable[HostSpec]) -> Moves:
    """What became of the hosts since the last run."""
    now = _addresses(hosts)
    return Moves.of(_addresses_in_state(_digest(now)), now)


def inventory(hosts: Iterable[HostSpec]) -> str:
    """What a stack exports as `inventory`: a digest of the names and addresses of its hosts. While it is that of the state,
    nothing was renamed and the hosts there need not be read, which costs 1.5 s of CPU time for 1,000 of them."""
    return _digest(_addresses(hosts))


def _addresses(hosts: Iterable[HostSpec]) -> dict[str, str]:
    return {host.name: host.prefix if host.connection == "local" else host.address for host in hosts}


def _digest(addresses: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(addresses, sort_keys=True).encode()).hexdigest()[:16]


def _addresses_in_state(unchanged: str) -> dict[str, str]:
    """Address by host; empty where the state has the same inventory. Empty too where it cannot be read: then a rename is shown as
    two hosts, and harms none."""
    stack = f"{pulumi.get_organization()}/{pulumi.get_project()}/{pulumi.get_stack()}"
    try:
        # A stack that never had hosts has no such output; without any state the second function would crash the engine.
        if _invoked("readStackOutputs", {"name": stack}).get("inventory", unchanged) == unchanged:
            return {}
        resources = _invoked("readStackResourceOutputs", {"stackName": stack})
    except Exception:
        return {}
    hosts = {urn: resource["outputs"] for urn, resource in resources.items() if resource["type"] == _HOST}
    return {urn.rpartition("::")[2]: outputs["address"] for urn, outputs in hosts.items() if outputs.get("address")}


def _invoked(function: str, arguments: Mapping[str, str]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = invoke(f"pulumi:pulumi:{function}", dict(arguments)).value["outputs"]
    return found
